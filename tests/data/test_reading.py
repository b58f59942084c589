"""Files in other encodings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.data import load_tokenizer, open_rows, reading
from lagwise.data.sources import document_parts
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.models.loading import save_tokenizer
from lagwise.training import load_recipe


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        ("größe".encode("latin1"), "iconv -f latin1 -t utf-8 a.txt > utf8-a.txt"),
        ("“größe”".encode("cp1252"), "iconv -f cp1252"),
        ("a plain text".encode("utf-16le"), "seems UTF-16, not UTF-8; convert it: 'iconv -f utf-16le"),
    ],
)
def test_an_encoding_is_converted_by_the_command_that_the_error_gives(data: bytes, advice: str) -> None:
    with pytest.raises(ValueError, match=re.escape(advice)):
        reading.decoded(data, Path("a.txt"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_byte_order_mark_tells_the_encoding(encoding: str, tmp_path: Path) -> None:
    assert reading.decoded("größe".encode(encoding), Path("a.txt")) == "größe"
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "größe"}\n{"text": "b"}\n'.encode(encoding))
    source = open_rows(str(path))
    assert (source.columns, source.read()["train"]["text"][:]) == (("text",), ["größe", "b"])
    with pytest.raises(ValueError, match=f"is {encoding.upper()}, not UTF-8; convert it"):
        [*map("".join, document_parts(path))]
    with pytest.raises(ValueError, match="is not valid UTF"):
        reading.decoded("größe".encode(encoding)[:-1], Path("a.txt"))


@pytest.mark.parametrize("command", ["generate", "predict"])
def test_standard_input_that_is_not_utf8(command: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    LagwiseForCausalLM(LagwiseConfig(vocab_size=258, hidden_size=8, num_hidden_layers=1)).save_pretrained(run)
    save_tokenizer(load_tokenizer("bytes"), run, None)
    (run / "recipe.yaml").write_text(load_recipe("tnn-lm").to_yaml())
    options = ["--prompt-file", "-"] if command == "generate" else []
    result = CliRunner().invoke(app, [command, str(run), *options], input="größe\n".encode("latin1"))
    assert isinstance(result.exception, ValueError)
    assert str(result.exception).startswith("standard input is not UTF-8 (byte 2 is 0xf6)")
    assert str(result.exception).endswith("for example with 'iconv -f latin1 -t utf-8'")
