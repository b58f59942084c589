"""Compare the public names with those of the last tagged version: `make names`.

Public is what docs/reference shows: the names that its packages import for type checkers, with their public methods and
arguments. A name that has gone, or an argument that is called in another way, is an error unless the newest section of
CHANGELOG.md has it in backticks, as GOVERNANCE.md asks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from release import git

SOURCES = {"lagwise": "src", "lagwise_papers": "papers/src"}


def last_tag(root: Path) -> str | None:
    """The newest version's tag in the history of the tree."""
    return next(iter(git(root, "tag", "--list", "v*", "--merged", "HEAD", "--sort=-v:refname").split()), None)


def documented(root: Path, tag: str) -> list[str]:
    """The packages and modules that the reference of a version shows, and the package itself."""
    pages = git(root, "ls-tree", "--name-only", tag, "docs/reference/").split()
    shown = [name for page in pages for name in re.findall(r"^::: (\S+)", git(root, "show", f"{tag}:{page}"), re.M)]
    return ["lagwise", *shown]


def public(package: Any, path: str) -> griffe.Module:
    """A module with the objects that a package offers under its name, or a module's own."""
    found = griffe.Module(path)
    try:
        module = package[path.split(".")[1:]] if "." in path else package
    except KeyError:  # the module has gone, and all its names with it
        return found
    member: Any
    for name, member in module.members.items():
        if member.is_alias and module.is_init_module and not name.startswith("_"):
            target = str(member.target_path)
            if target.split(".")[0] in SOURCES and name not in ("lazy_package", "register"):
                found.members[name] = member.final_target
        elif not member.is_alias and not module.is_init_module and not name.startswith("_"):
            found.members[name] = member
    return found


def breakages(root: Path, tag: str) -> Iterator[griffe.Breakage]:
    """What code that used the tagged version can no longer do."""
    packages = documented(root, tag)
    for name, source in SOURCES.items():
        mine = [path for path in packages if path.split(".")[0] == name]
        if mine:
            new = griffe.load(name, search_paths=[root / source])
            old = griffe.load_git(name, ref=tag, repo=root, search_paths=[source])
            for path in mine:
                yield from griffe.find_breaking_changes(public(old, path), public(new, path))


def is_said(breakage: griffe.Breakage, changes: str) -> bool:
    """Whether a part of a changelog names what has changed."""
    changed = breakage.obj
    name = changed.parent.name if changed.name == "__init__" and changed.parent else changed.name
    return re.search(rf"`[^`\n]*\b{re.escape(name)}\b[^`\n]*`", changes) is not None


def main(root: Path) -> int:
    tag = last_tag(root)
    if tag is None:
        print("no version is tagged yet, so there are no names to keep")
        return 0
    changes = re.split(r"^## ", (root / "CHANGELOG.md").read_text(), maxsplit=2, flags=re.MULTILINE)[1]
    missing = [each for each in breakages(root, tag) if not is_said(each, changes)]
    for each in missing:
        said = re.sub(r"\x1b\[\d+m", "", each.explain(griffe.ExplanationStyle.ONE_LINE))  # in colours
        print(f"error: {said}", file=sys.stderr)
    print(f"{len(missing)} changes since {tag} break code and are not in CHANGELOG.md")
    return min(len(missing), 1)


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
