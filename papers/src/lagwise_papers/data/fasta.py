"""FASTA and FASTQ: sequences of DNA, RNA or proteins with a header each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import lagwise.data.arrow as pa
from lagwise.data.arrays import FOLDER_LABEL
from lagwise.data.reading import decoded

_FASTA = (".fasta", ".fa", ".fna", ".ffn", ".faa")
_FASTQ = (".fastq", ".fq")
_MODIFIER = re.compile(r"\[([\w-]+)=([^\]]*)\]")  # as NCBI writes them: [organism=Homo sapiens]


def read(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    """Read a row for each record: ``text``, the sequence; ``id``, the first word of its header; ``description``, the
    rest; ``label``, the file's name without its suffix; and a column for each modifier ``[name=value]`` of the headers.

    Lines of a sequence are joined. Qualities of FASTQ are checked for their length and left out. ValueError names the
    line that is wrong.
    """
    label = path.name[: path.name.rindex(_suffix(path))]
    rows: dict[str, list[str | None]] = {"text": [], "id": [], "description": [], FOLDER_LABEL: []}
    for number, (_, header, sequence) in enumerate(_records(_lines(data, path), path)):
        name, _, description = header.partition(" ")
        record: dict[str, str | None] = {"text": sequence, "id": name, "description": description.strip()}
        record[FOLDER_LABEL] = label
        record |= {key: value.strip() for key, value in _MODIFIER.findall(header) if key not in ("text", "id")}
        for key in record.keys() - rows.keys():
            rows[key] = [None] * number
        for key, values in rows.items():
            values.append(record.get(key))
    return pa.table({k: pa.array(v, pa.string()) for k, v in rows.items() if columns is None or k in columns})


def _lines(data: bytes, path: Path) -> list[str]:
    return decoded(data, path).removeprefix("\ufeff").splitlines()


def _records(lines: Sequence[str], path: Path) -> list[tuple[int, str, str]]:
    """Read the index of the first line, the header and the sequence of each record."""
    return _fastq(lines, path) if _suffix(path).lower() in _FASTQ else _fasta(lines, path)


def _suffix(path: Path) -> str:
    return next(s for s in path.suffixes[::-1] if s.lower() in _FASTA + _FASTQ)


def _fasta(lines: Sequence[str], path: Path) -> list[tuple[int, str, str]]:
    records: list[tuple[int, str, list[str]]] = []
    for index, line in enumerate(lines):
        if line.startswith(">"):
            records.append((index, line[1:].strip(), []))
        elif line.strip() and not line.startswith(";"):  # an old style of comments
            if not records:
                raise ValueError(f"{path}, line {index + 1}: a sequence without a header, which begins with '>'")
            records[-1][2].append("".join(line.split()))
    return [(index, header, "".join(sequence_lines)) for index, header, sequence_lines in records]


def _fastq(lines: Sequence[str], path: Path) -> list[tuple[int, str, str]]:
    records, index = [], 0
    while index < len(lines):
        if not lines[index].strip():
            index += 1
            continue
        if not lines[index].startswith("@"):
            raise ValueError(f"{path}, line {index + 1}: a record of FASTQ begins with '@'")
        header, start, index = lines[index][1:].strip(), index, index + 1
        sequence_lines: list[str] = []
        while index < len(lines) and not lines[index].startswith("+"):
            sequence_lines.append(lines[index].strip())
            index += 1
        sequence, quality, index = "".join(sequence_lines), 0, index + 1
        while index < len(lines) and quality < len(sequence):
            quality += len(lines[index].strip())
            index += 1
        if quality != len(sequence):
            raise ValueError(
                f"{path}, line {start + 1}: the record has {len(sequence)} letters and {quality} qualities; the file "
                "may be cut short"
            )
        records.append((start, header, sequence))
    return records
