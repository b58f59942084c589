"""Write small labelled sets from Debian packages: `python benchmarks/debian_sets.py ROOT OUT`.

ROOT is a folder into which the packages below were unpacked (`apt-get download NAME`, `dpkg -x NAME.deb ROOT`). A set
whose package is missing is left out. Each set is a folder of OUT with train and test rows, as people have them:

- fortunes: sayings and their file, of the 12 largest files (fortunes, fortunes-min);
- sections: one-line descriptions of packages and their section, 500 of each of 12 (from apt itself);
- tags: one-line descriptions of packages and their tags, a list of the 20 most common kinds (from apt itself);
- languages: words and their language, 500 of each of 8 (wamerican, wdutch, wfrench, wngerman, witalian, wpolish,
  wspanish, wswedish);
- prompts: spoken prompts in folders of three languages (asterisk-core-sounds-en-wav, -es-wav, -fr-wav);
- icons: icons of 32 x 32 in folders of six kinds (oxygen-icon-theme);
- stamps: pictures in folders of five kinds, made 32 x 32 (tuxpaint-stamps-default);
- spam: short messages, if ROOT has the file SMSSpamCollection of the UCI repository.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

_TEST = 5  # every fifth row of each set is for tests
_DICTIONARIES = ("american-english", "dutch", "french", "ngerman", "italian", "polish", "spanish", "swedish")


def _divided(rows: Sequence[tuple]) -> dict[str, list[tuple]]:
    order = np.random.default_rng(0).permutation(len(rows))
    shuffled = [rows[i] for i in order]
    return {"test": shuffled[::_TEST], "train": [row for i, row in enumerate(shuffled) if i % _TEST]}


def _write_texts(out: Path, rows: Iterable[tuple[str, str]]) -> None:
    out.mkdir(parents=True)
    for split, some in _divided(sorted(set(rows))).items():
        lines = (json.dumps({"text": text, "label": label}) for text, label in some)
        (out / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def _write_files(out: Path, rows: Iterable[tuple[Path, str]], copy: Callable[[Path, Path], object]) -> None:
    for split, split_rows in _divided(sorted(rows)).items():
        for i, (file, label) in enumerate(split_rows):
            target = out / split / label / f"{i}-{file.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            copy(file, target)


def fortunes(root: Path, out: Path) -> None:
    files = [each for each in (root / "usr/share/games/fortunes").iterdir() if "." not in each.name]
    texts = {file.name: re.split(r"^%\n", file.read_text(), flags=re.MULTILINE) for file in files}
    largest = sorted(texts, key=lambda name: (-len(texts[name]), name))[:12]
    _write_texts(out, ((text.strip(), name) for name in largest for text in texts[name] if text.strip()))


def _packages() -> list[str]:
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    return listed.split("\n\n")


def sections(root: Path, out: Path) -> None:
    packages = [dict(re.findall(r"^(Description|Section): (.*)$", each, re.MULTILINE)) for each in _packages()]
    of_section: dict[str, set[str]] = {}
    for each in packages:
        if len(each) == 2:
            of_section.setdefault(each["Section"], set()).add(each["Description"])
    largest = sorted(of_section, key=lambda name: (-len(of_section[name]), name))[:12]
    random = np.random.default_rng(0)
    _write_texts(out, ((str(t), name) for name in largest for t in random.choice(sorted(of_section[name]), 500, False)))


def tags(root: Path, out: Path) -> None:
    tags_of: dict[str, set[str]] = {}
    for each in _packages():
        text_tags = re.findall(r"^(?:Tag:)? .*::.*$", each, re.MULTILINE)
        described = re.search(r"^Description: (.*)$", each, re.MULTILINE)
        if text_tags and described:
            tags_of.setdefault(described[1], set()).update(re.findall(r"[\w-]+::[\w+.:-]+", " ".join(text_tags)))
    counts = Counter(tag for each in tags_of.values() for tag in each)
    frequent = {tag for tag, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:20]}
    texts = np.random.default_rng(0).choice(sorted(tags_of), 8000, False)
    out.mkdir(parents=True)
    for split, split_rows in _divided([(str(text), sorted(tags_of[text] & frequent)) for text in texts]).items():
        lines = (json.dumps({"text": text, "label": text_tags}) for text, text_tags in split_rows)
        (out / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def languages(root: Path, out: Path) -> None:
    random, rows = np.random.default_rng(0), []
    for name in _DICTIONARIES:
        words = (root / "usr/share/dict" / name).read_text(errors="ignore").split()
        plain = sorted({word for word in words if word.isalpha() and word.islower() and len(word) > 3})
        rows += [(str(word), name) for word in random.choice(plain, 500, False)]
    _write_texts(out, rows)


def prompts(root: Path, out: Path) -> None:
    sounds = root / "usr/share/asterisk/sounds"
    rows = ((file, file.relative_to(sounds).parts[0][:2]) for file in sounds.rglob("*.wav"))
    _write_files(out, (row for row in rows if row[0].stat().st_size > 1000), shutil.copyfile)


def icons(root: Path, out: Path) -> None:
    base = root / "usr/share/icons/oxygen/base/32x32"
    kinds = ("actions", "apps", "devices", "mimetypes", "places", "status")
    rows = [(file, kind) for kind in kinds for file in (base / kind).glob("*.png") if not file.is_symlink()]
    _write_files(out, rows, _small)


def stamps(root: Path, out: Path) -> None:
    base = root / "usr/share/tuxpaint/stamps"
    kinds = ("animals", "food", "seasonal", "symbols", "town")
    _write_files(out, [(file, kind) for kind in kinds for file in (base / kind).rglob("*.png")], _small)


def spam(root: Path, out: Path) -> None:
    lines = (root / "SMSSpamCollection").read_text().splitlines()
    _write_texts(out, ((text, label) for label, text in (line.split("\t", 1) for line in lines)))


def _small(file: Path, target: Path) -> None:
    from PIL import Image

    with Image.open(file) as picture:
        small = picture.convert("RGBA").resize((32, 32))
        white = Image.new("RGBA", small.size, "white")
        Image.alpha_composite(white, small).convert("RGB").save(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    for write in (fortunes, sections, tags, languages, prompts, icons, stamps, spam):
        folder = options.out / write.__name__
        if folder.is_dir():
            continue
        try:
            write(options.root, folder)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            print(f"{write.__name__} is left out: {error}")


if __name__ == "__main__":
    main()
