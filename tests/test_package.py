"""What a release is made of: metadata, the wheel, workflows, and the command that tags it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import check_names
import check_wheel
import mutate
import pytest
import release
import yaml

import lagwise

ROOT = Path(__file__).parent.parent

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
METADATA = "Metadata-Version: 2.4\nName: x\nVersion: 1\nClassifier: Typing :: Typed\n"


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_pythons_of_the_classifiers_are_tested_and_every_requirement_has_a_lowest_version() -> None:
    classifiers = " ".join(project()["classifiers"])
    promised = re.findall(r"Python :: (3\.\d+)", classifiers)
    tested = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text())["jobs"]["test"]
    assert tested["strategy"]["matrix"]["python"] == promised
    assert project()["requires-python"] == f">={promised[0]}"
    assert "Typing :: Typed" in classifiers
    needed = [*project()["dependencies"], *(x for extra in project()["optional-dependencies"].values() for x in extra)]
    assert not [text for text in needed if ">=" not in text and not text.startswith("lagwise[")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_pinned_actions_and_targets_that_exist(path: Path) -> None:
    """An action is named by the hash of a commit, since tags can be moved."""
    jobs = yaml.safe_load(path.read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert not [step["uses"] for step in steps if "uses" in step and not re.search("@[0-9a-f]{40}$", step["uses"])]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = " ".join(step.get("run", "") for step in steps)
    made = " ".join(re.findall(r"make ([a-z -]+)", runs)).split()
    assert set(made) <= targets
    assert all("timeout-minutes" in job for job in jobs.values())


def test_the_tested_set_has_hashes_and_the_versions_of_the_constraints() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    tested = (ROOT / "requirements-tested.txt").read_text()
    packages = re.findall(
        r"^([\w.-]+)==(\S+)(?: ;[^\\]*)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", tested, re.MULTILINE
    )
    assert len(packages) == tested.count("==") - tested.count(" == ") > 100
    found = {name.lower().replace("_", "-"): version for name, version, _ in packages}
    usual = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    assert "torch" not in found
    assert {name: found[name] for name in found.keys() & usual.keys()} == {n: v for n, v in usual.items() if n in found}
    extras = project()["optional-dependencies"]
    (mine,) = (text for text in extras["dev"] if text.startswith("lagwise["))
    needed = {re.split(r"[\[>]", text)[0] for name in ["dev", *re.findall(r"\w+", mine)[1:]] for text in extras[name]}
    assert {name.lower().replace("_", "-") for name in needed} - {"lagwise"} <= found.keys()


@pytest.mark.parametrize(("tag", "passes"), [(f"v{lagwise.__version__}", True), ("v0.0.1", False)])
def test_a_tag_that_is_not_the_version_stops_the_release(tag: str, passes: bool) -> None:
    build = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]["build"]
    (check,) = (step["run"] for step in build["steps"] if "GITHUB_REF_NAME" in step.get("run", ""))
    done = subprocess.run(["bash", "-c", check], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag}, check=False)
    assert (done.returncode == 0) == passes


@pytest.fixture
def built(tmp_path: Path) -> tuple[Path, Path]:
    """A wheel of a small package, and its source."""
    source = tmp_path / "src"
    (source / "small" / "__pycache__").mkdir(parents=True)
    (source / "small" / "__init__.py").write_text("")
    (source / "small" / "py.typed").write_text("")
    (source / "small" / "__pycache__" / "x.pyc").write_text("")
    path = tmp_path / "small-1-py3-none-any.whl"
    pack(path, {"small/__init__.py": "", "small/py.typed": ""})
    return path, source


def pack(path: Path, files: dict[str, str], metadata: str = METADATA) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("small-1.dist-info/METADATA", metadata)
        archive.writestr("small-1.dist-info/licenses/LICENSE", "")


def test_a_wheel_has_the_files_of_the_source_and_no_others(built: tuple[Path, Path]) -> None:
    path, source = built
    assert check_wheel.problems(path, source) == []
    pack(path, {"small/__init__.py": "", "notes.txt": ""}, METADATA.replace("Typing", "Topic"))
    assert check_wheel.problems(path, source) == [
        "small/py.typed is not in the wheel",
        "notes.txt is in the wheel, and not in src",
        "the wheel does not say it is typed",
    ]


def test_links_of_a_wheel_that_has_an_address_are_absolute(built: tuple[Path, Path]) -> None:
    path, source = built
    files = {"small/__init__.py": "", "small/py.typed": ""}
    text = "\n[here](#a) [a page](docs/a.md) ![b](docs/b.png)\n[site](https://example.com)"
    for address, expected in (
        ("", []),
        ("Project-URL: Repository, https://github.com/a/b\n", ["docs/a.md", "docs/b.png"]),
    ):
        pack(path, files, METADATA + address + text)
        assert check_wheel.problems(path, source) == [f"the description links to {name}" for name in expected]


ADDRESS, MOVED = "https://github.com/some-one/lagwise", "https://github.com/others/lag.wise"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with what has a version, as it stands here, and an unreleased 9.1.0 in its changelog."""
    for name in {**release.PLACES, **release.ADDRESSED}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    project = tmp_path / "pyproject.toml"  # which has an address after the first release
    project.write_text(re.sub(release.ADDRESSED[project.name], "[project.urls]\n", project.read_text(), flags=re.M))
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 9.1.0 (unreleased)\n\n- New.\n\n## 0.2.0\n")
    (tmp_path / ".gitignore").write_text("build/\n")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "someone@example.com")
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "Begin"]):
        release.git(tmp_path, *arguments)
    return tmp_path


def test_a_tested_tree_is_released(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["tested"], clone) == 0
    assert release.main(["release", "9.1.0", f"{ADDRESS}.git"], clone) == 0
    assert "tagged v9.1.0" in capsys.readouterr().out
    for name, pattern in release.PLACES.items():
        assert re.findall(pattern, (clone / name).read_text(), re.MULTILINE) == ["9.1.0"]
    assert re.search(r"^## 9\.1\.0 \(20\d\d-\d\d-\d\d\)$", (clone / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert release.git(clone, "status", "--porcelain") == ""
    assert release.git(clone, "describe") == "v9.1.0"
    assert release.main(["tested"], clone) == 0
    for earlier in ("9.1.0", "9.0.5"):
        assert release.main(["release", earlier], clone) == 1
        assert f"VERSION={earlier} does not follow 9.1.0" in capsys.readouterr().err


def test_the_first_release_says_where_the_repository_is(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Later ones keep the address, unless they give another."""
    for version, address, expected in [("9.1.0", ADDRESS, ADDRESS), ("9.2.0", "", ADDRESS), ("9.3.0", MOVED, MOVED)]:
        changes = clone / "CHANGELOG.md"
        changes.write_text(re.sub(r"## 9\S* .*", f"## {version} (unreleased)", changes.read_text()))
        release.git(clone, "commit", "--quiet", "--all", "--allow-empty", "--message", "More")
        assert release.main(["tested"], clone) == 0
        if version == "9.1.0":
            assert release.main(["release", version, ""], clone) == 1
            assert "has no address yet: give its repository's, REPOSITORY=" in capsys.readouterr().err
            for wrong in ("github.com/someone/lagwise", "https://example.com/lagwise", f"{ADDRESS}/tree/main"):
                assert release.main(["release", version, wrong], clone) == 1
                assert f"REPOSITORY={wrong!r} must be https://github.com/OWNER/NAME" in capsys.readouterr().err
            assert release.git(clone, "status", "--porcelain") == release.git(clone, "tag") == ""
        assert release.main(["release", version, address], clone) == 0
        project = tomllib.loads((clone / "pyproject.toml").read_text())["project"]
        assert project["urls"]["Repository"] == project["urls"]["Homepage"] == expected
        assert project["urls"].keys() == {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}
        assert project["scripts"]
        assert yaml.safe_load((clone / "CITATION.cff").read_text())["repository-code"] == expected
        readme = (clone / "README.md").read_text()
        assert re.findall(r"^\[badge\]: (.*)$", readme, re.MULTILINE) == [
            f"{expected}/actions/workflows/checks.yml/badge.svg"
        ]
        shown = described(clone, version)
        assert not check_wheel.RELATIVE.findall(shown)
        assert f"[CONTRIBUTING.md]({expected}/blob/v{version}/CONTRIBUTING.md)" in shown
        assert f"]({expected}/raw/" in shown


def described(root: Path, version: str) -> str:
    """The README as the build puts it into the package: hatch-fancy-pypi-readme applies patterns of pyproject.toml."""
    text = (root / "README.md").read_text()
    hooks = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    for change in hooks["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"].replace("$HFPR_VERSION", version), text)
    return text


@pytest.mark.parametrize("name", ["new.txt", "README.md"])
def test_a_dirty_tree_is_not_released(clone: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert release.main(["tested"], clone) == 0
    with (clone / name).open("a") as f:
        f.write("more\n")
    for arguments in (["release", "9.1.0"], ["tested"]):
        assert release.main(arguments, clone) == 1
        assert name in capsys.readouterr().err
    release.git(clone, "add", "--all")
    release.git(clone, "commit", "--quiet", "--message", "More")
    assert release.main(["release", "9.1.0"], clone) == 1
    assert "has changed since it was tested" in capsys.readouterr().err


def test_what_is_not_ready_is_refused_and_nothing_is_written(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = release.git(clone, "log", "--oneline")
    for version, message in (
        ("", "give a version"),
        ("nine", "VERSION='nine' is no version"),
        ("v9.1.0", "VERSION='v9.1.0' cannot be published"),
        ("9.1.0+local", "cannot be published"),
        ("9.1.0", "the tree has not been tested"),
        ("9.2.0", "CHANGELOG.md must begin with `## 9.2.0 (unreleased)`; it begins with `## 9.1.0 (unreleased)`"),
        ("0.2.0", "CHANGELOG.md must begin with `## 0.2.0 (unreleased)`"),  # which nobody tagged
    ):
        if version == "9.2.0":
            release.note_tested(clone)
        assert release.main(["release", version], clone) == 1
        assert message in capsys.readouterr().err
    assert release.git(clone, "log", "--oneline") == before
    assert release.git(clone, "status", "--porcelain") == release.git(clone, "tag") == ""


def test_what_breaks_code_that_used_the_last_version_is_in_the_changelog(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def commit(module: str, home: str, changes: str) -> None:
        (clone / "src" / "lagwise" / "__init__.py").write_text(
            f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lagwise.{home} import double\n"
        )
        (clone / "src" / "lagwise" / f"{home}.py").write_text(module)
        (clone / "CHANGELOG.md").write_text(f"# Changelog\n\n## 9.1.0 (unreleased)\n\n{changes}\n\n## 9\n\n`double`")
        release.git(clone, "add", "--all")
        release.git(clone, "commit", "--quiet", "--message", "Change")

    (clone / "docs" / "reference").mkdir(parents=True)
    (clone / "docs" / "reference" / "index.md").write_text("# Names\n")
    commit("def double(x, twice=False): ...\ndef internal(x): ...\n", "first", "- New.")
    assert check_names.main(clone) == 0
    assert "no version is tagged yet" in capsys.readouterr().out
    release.git(clone, "tag", "--annotate", "v9.0.0", "--message", "lagwise 9.0.0")
    commit("def double(x, twice=False, *, thrice=False): ...\n", "moved", "- More.")
    assert check_names.main(clone) == 0
    commit("def double(x): ...\n", "moved", "- More.")
    assert check_names.main(clone) == 1
    assert "double(twice): Parameter was removed" in capsys.readouterr().err
    commit("def double(x): ...\n", "moved", "- `double` doubles once.")
    assert check_names.main(clone) == 0


def test_every_mutant_differs_from_the_code_at_one_place(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def f(a, b=1.5):\n    if a < 2 and b:\n        return a + b\n    raise ValueError(f'{a + 1}')\n")
    count = len(list(mutate.places(ast.parse(path.read_text()))))
    made = {ast.unparse(mutate.mutated(path, number)[0]) for number in range(count)}
    assert len(made) == count == 6
    assert "def f(a, b=2.5):\n    if a < 2 and b:\n        return a + b" in " ".join(made)
    assert "if not (a < 2 and b):" in " ".join(made)
