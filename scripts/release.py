"""Make a release: one commit with the version, and its tag. Nothing is pushed.

    python scripts/release.py tested            note that the committed tree passes `make release-check`, which calls it
    python scripts/release.py release 0.3.0     `make release VERSION=0.3.0`
    python scripts/release.py release 0.3.0 https://github.com/OWNER/NAME     the same with REPOSITORY=, at first

A release is refused unless the tree is committed, was tested as it is, has the version's heading in the changelog, and
says where its repository is.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

#: what holds the version, and how: the group is replaced
PLACES = {
    "src/lagwise/_version.py": r'^__version__ = "([^"]+)"$',
    "papers/src/lagwise_papers/_version.py": r'^__version__ = "([^"]+)"$',
    "CITATION.cff": r"^version: (\S+)$",
    "README.md": r"\bdist/lagwise-([^-\s]+)-py3-none-any\.whl",
}
#: what holds the repository's address, and the text that is replaced by it
ADDRESSED = {
    "pyproject.toml": r"^\[project\.urls\]\n(?:.*\n)*?(?=\n\[project\.scripts\]\n)",
    "CITATION.cff": r"^license: .*\n(?:repository-code: .*\n)?",
    "README.md": r"\A# lagwise\n(?:\n\[!\[checks\].*\n\n(?:\[\w+\]: .*\n)+)?",
}
TESTED = Path("build/tested")  # the tree that passed, by git's name for it


def git(root: Path, *arguments: str) -> str:
    """What git prints. RuntimeError with its message if it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def committed_tree(root: Path) -> str:
    """Git's name for the committed tree. ValueError if files are changed, or neither committed nor ignored."""
    if changed := git(root, "status", "--porcelain"):
        raise ValueError(f"there are changes that are not committed:\n{changed}")
    return git(root, "rev-parse", "HEAD^{tree}")


def note_tested(root: Path) -> str:
    """Note that the committed tree passes its tests."""
    tree = committed_tree(root)
    (root / TESTED).parent.mkdir(exist_ok=True)
    (root / TESTED).write_text(tree + "\n")
    return f"the tree {tree[:12]} has passed"


def release(root: Path, text: str, repository: str = "") -> str:
    """Write the version, and the repository's address if one is given, where they stand, commit, and tag the commit.
    ValueError, before anything is written, if the version is none or not the next one, or the tree is not ready."""
    version = _next_version(root, text)
    tree = committed_tree(root)
    tested = (root / TESTED).read_text().strip() if (root / TESTED).is_file() else None
    if tested != tree:
        what = "has not been tested" if tested is None else "has changed since it was tested"
        raise ValueError(f"the tree {what}: run `make release-check` first, on what is committed")
    changes = _dated_changes((root / "CHANGELOG.md").read_text(), version)
    written = {name: (root / name).read_text() for name in {**PLACES, **ADDRESSED}}
    for name, content in _addresses(written["pyproject.toml"], repository).items():
        written[name] = _replaced(written, name, ADDRESSED[name], content, 0)
    for name, pattern in PLACES.items():
        written[name] = _replaced(written, name, pattern, version, 1)
    for name, content in {**written, "CHANGELOG.md": changes}.items():
        (root / name).write_text(content)
    git(root, "add", *written, "CHANGELOG.md")
    git(root, "commit", "--quiet", "--allow-empty", "--message", f"Release {version}")
    git(root, "tag", "--annotate", f"v{version}", "--message", f"lagwise {version}")
    return f"committed and tagged v{version}; publish it with: git push --follow-tags"


def _next_version(root: Path, text: str) -> str:
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise ValueError(f"VERSION={text!r} is no version; give one such as 0.3.0") from error
    if str(version) != text or version.local or version.is_devrelease:
        raise ValueError(f"VERSION={text!r} cannot be published; give one such as 0.3.0 or 0.3.0rc1")
    if (last := max(map(Version, _released(root)), default=None)) and last >= version:
        raise ValueError(f"VERSION={text} does not follow {last}, which is tagged")
    return text


def _released(root: Path) -> list[str]:
    """The versions of the repository's tags."""
    return re.findall(r"^v(\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?)$", git(root, "tag"), re.MULTILINE)


def _dated_changes(text: str, version: str) -> str:
    """The changelog with today's date in its first heading, which must be the version's."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    first = re.search(r"^## .*$", text, re.MULTILINE)
    pattern = rf"## {re.escape(version)}(?: \((?:unreleased|\d{{4}}-\d\d-\d\d)\))?"
    if first is None or not re.fullmatch(pattern, first[0]):
        begins = f"`{first[0]}`" if first else "no heading"
        raise ValueError(f"CHANGELOG.md must begin with `## {version} (unreleased)`; it begins with {begins}")
    return f"{text[: first.start()]}## {version} ({today}){text[first.end() :]}"


def _addresses(pyproject: str, repository: str) -> dict[str, str]:
    """What the files of ADDRESSED say of a repository; nothing if none is given and they have one already."""
    if not repository:
        if not tomllib.loads(pyproject)["project"]["urls"]:
            raise ValueError("the package has no address yet: give its repository's, REPOSITORY=https://github.com/...")
        return {}
    found = re.fullmatch(r"https://github\.com/([A-Za-z0-9-]+)/([\w.-]+?)(?:\.git)?/?", repository)
    if found is None:
        raise ValueError(f"REPOSITORY={repository!r} must be https://github.com/OWNER/NAME, whose workflow publishes")
    owner, name = found.groups()
    source, site = f"https://github.com/{owner}/{name}", f"https://{owner.lower()}.github.io/{name}/"
    urls = {"Homepage": source, "Documentation": site, "Repository": source, "Issues": f"{source}/issues"}
    urls["Changelog"] = f"{source}/blob/main/CHANGELOG.md"
    checks, license = (f"{source}/actions/workflows/checks.yml", tomllib.loads(pyproject)["project"]["license"])
    return {
        "pyproject.toml": "[project.urls]\n"
        + "".join(f'{key} = "{url}"\n' for key, url in urls.items())
        + "".join(_links(mark, f"{source}/{kind}") for mark, kind in ((r"!", "raw"), (r"(?<!!)", "blob"))),
        "CITATION.cff": f'license: {license}\nrepository-code: "{source}"\n',
        "README.md": "# lagwise\n\n[![checks][badge]][checks] [documentation][site]\n\n"
        + f"[badge]: {checks}/badge.svg\n[checks]: {checks}\n[site]: {site}\n",
    }


def _links(mark: str, place: str) -> str:
    """What makes the README's links to files of the repository absolute in the package, since an index shows it without
    them. mark: what comes before the link, as a pattern."""
    return rf"""
[[tool.hatch.metadata.hooks.fancy-pypi-readme.substitutions]]
pattern = '({mark}\[[^\]]*\]\()(?![a-z]+:|#)'
replacement = '\1{place}/v$HFPR_VERSION/'
"""


def _replaced(texts: dict[str, str], name: str, pattern: str, content: str, group: int) -> str:
    text = texts[name]
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise ValueError(f"{Path(name).name} has nothing that looks like {pattern}")
    return text[: found.start(group)] + content + text[found.end(group) :]


def main(arguments: Sequence[str], root: Path) -> int:
    try:
        match arguments:
            case ["tested"]:
                print(note_tested(root))
            case ["release", text, *repository] if text and len(repository) < 2:
                print(release(root, text, *repository))
            case _:
                raise ValueError("give a version: make release VERSION=0.3.0")
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path.cwd()))
