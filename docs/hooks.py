"""What the site does to pages that are written to be read in the repository: links that leave docs/ get what the site
has in their place, such as a link to a public function its place in the API reference, or become plain text."""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from equations import exported
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
_COPIED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "GOVERNANCE.md": "governance.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
}
_OFF_SITE = ("docs/log.md", "docs/checklists.md")
# The pages of the API reference by the packages that they show whole.
_REFERENCE = {
    package: f"reference/{page.name}"
    for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
    for package in re.findall(r"^::: lagwise\.(\w+)$", page.read_text(), re.MULTILINE)
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Link to the repository, if pyproject.toml says where it is, and say where the site is."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    config.repo_url, config.site_url = urls.get("Repository"), urls.get("Documentation", config.site_url)
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the figures of results, and the pages that lie at the top of the repository."""
    added = {f"results/{path.name}": path for path in sorted((ROOT / "benchmarks" / "results").glob("*.png"))}
    added |= {uri: ROOT / name for name, uri in _COPIED.items()}
    for uri, path in added.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page, and give one with wide tables the whole width."""
    here = page.file.src_uri
    if here == "equations.md":  # its rows need the width
        page.meta["hide"] = ["toc"]
        markdown += "\n<style>.md-grid {max-width: 90rem}</style>\n"
    source = next((name for name, uri in _COPIED.items() if uri == here), f"docs/{here}")

    def moved(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return match.group()
        full = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if full in _COPIED:
            uri = _COPIED[full]
        elif full in _OFF_SITE:
            return text
        elif full.startswith("docs/"):
            uri = full.removeprefix("docs/")
        elif full.startswith("benchmarks/results/") and mark:
            uri = f"results/{posixpath.basename(full)}"
        elif name := _exported_name(full, text):
            package = name.split(".")[1]
            uri, anchor = _REFERENCE[package], name
        else:
            return text
        relative = posixpath.relpath(uri, posixpath.dirname(here) or ".")
        return f"{mark}[{text}]({relative}{'#' + anchor if anchor else ''})"

    return _LINK.sub(moved, markdown)


def _exported_name(path: str, text: str) -> str | None:
    """The public name of the object that a link to a source file is about, if the site's reference has it; that of the
    class for a member."""
    parts, name = path.split("/"), text.strip("`").partition(".")[0]
    if parts[:2] == ["src", "lagwise"] and parts[2] in _REFERENCE and name in exported(parts[2]):
        return f"lagwise.{parts[2]}.{name}"
    return None
