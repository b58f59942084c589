"""Print a wheel's size and files, and fail unless they are those of a folder, by default src.

python scripts/check_wheel.py dist/*.whl [FOLDER]
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections import Counter
from email.parser import Parser
from pathlib import Path, PurePosixPath

SOURCE = Path(__file__).parents[1] / "src"
RELATIVE = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)")  # a link of Markdown to a file of the repository
MOST = 2**20  # bytes; a wheel that is larger has something in it that nobody meant to publish


def problems(wheel: Path, source: Path) -> list[str]:
    """What is wrong with a wheel of the packages in a folder."""
    kept = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(about).decode())
        licences = [name for name in archive.namelist() if ".dist-info/licenses/" in name]
    found = [f"{name} is not in the wheel" for name in sorted(kept - packed)]
    found += [f"{name} is in the wheel, and not in {source.name}" for name in sorted(packed - kept)]
    found += [] if "Typing :: Typed" in metadata.get_all("Classifier", []) else ["the wheel does not say it is typed"]
    found += [] if licences else ["the wheel has no licence"]
    if metadata.get("Project-URL"):  # an index shows the description without the repository's files
        found += [f"the description links to {link}" for link in RELATIVE.findall(str(metadata.get_payload()))]
    size = wheel.stat().st_size
    return found + ([f"the wheel has {size:,} bytes, more than {MOST:,}"] if size > MOST else [])


def main(wheel: Path, source: Path = SOURCE) -> int:
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {len(files)} files")
    for folder, number in sorted(Counter(str(PurePosixPath(file.filename).parent) for file in files).items()):
        size = sum(file.file_size for file in files if str(PurePosixPath(file.filename).parent) == folder)
        print(f"{size:>9,}  {number:>3} files  {folder}")
    wrong = problems(wheel, source)
    for line in wrong:
        print(f"WRONG {line}")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
