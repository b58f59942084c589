"""The documentation agrees with the code and the results files."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import shlex
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def script(name: str, folder: str = "docs") -> ModuleType:
    """Import a script, such as one that writes a page, with the folder of these on the path as when it is run."""
    if str(ROOT / "docs") not in sys.path:
        sys.path.insert(0, str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def equations() -> ModuleType:
    return script("equations")


@pytest.fixture(scope="module")
def equations_text(equations: ModuleType) -> str:
    return equations.page()


def test_equations_page_is_current(equations: ModuleType, equations_text: str) -> None:
    """Except for line numbers, which change with every edit."""
    written, anew = (re.sub(r"#L\d+\)", ")", text) for text in (equations.PAGE.read_text(), equations_text))
    assert written == anew, "run `make docs`"


def test_every_cited_place_is_tested(equations: ModuleType) -> None:
    """Everything that tests declare is also cited in the implementation."""
    cited, declared = set(equations.implemented()), set(equations.declared())
    assert len(cited) >= 80
    assert {place.paper for place in cited} == set(equations.PAPERS)
    assert not cited - declared, "no test declares these with pytest.mark.covers"
    assert not declared - cited, "no docstring cites these"


def test_links_of_the_equations_page_have_correct_targets(equations_text: str) -> None:
    links = re.findall(r"\[([^]]+)\]\(\.\./([^)#]+)#L(\d+)\)", equations_text)
    assert len(links) >= 200
    for name, path, line in links:
        source = (ROOT / path).read_text().splitlines()[int(line) - 1]
        assert re.match(rf" *(def|class) {name.rpartition('.')[2]}\b", source) or (
            line == "1" and Path(path).stem == name
        )


def test_markers_of_tests_are_read(equations: ModuleType, tmp_path: Path) -> None:
    """On functions, classes, methods and modules."""
    code = """
        import pytest
        pytestmark = [pytest.mark.slow, pytest.mark.covers("MEGA §3.1")]

        @pytest.mark.slow
        @pytest.mark.covers("TNN eq. 4 and 5", "TCNCA app. E")
        def test_one(): ...

        @pytest.mark.covers("TNN eq. 5")
        class TestTwo:
            @pytest.mark.covers("TNN eq. 6")
            def test_it(self): ...
    """
    (tmp_path / "test_file.py").write_text(textwrap.dedent(code))
    found = {tuple(place): [entry.name for entry in found] for place, found in equations.declared(tmp_path).items()}
    assert found == {
        ("MEGA", "§", "3.1"): [""],
        ("TNN", "eq", "4"): ["test_one"],
        ("TNN", "eq", "5"): ["test_one", "TestTwo"],
        ("TNN", "eq", "6"): ["TestTwo.test_it"],
        ("TCNCA", "app", "E"): ["test_one"],
    }
    (tmp_path / "test_file.py").write_text('@pytest.mark.covers("equation 5")\ndef test_one(): ...')
    with pytest.raises(ValueError, match=r"test_file\.py:2: no place of a paper in 'equation 5'"):
        equations.declared(tmp_path)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("(TNN §3.3 and eq. 5)", {("TNN", "§", "3.3"), ("TNN", "eq", "5")}),
        ("TNN tables 8 to 10", {("TNN", "table", n) for n in ("8", "9", "10")}),
        ("TNN eq. 1, 6 and 9", {("TNN", "eq", n) for n in ("1", "6", "9")}),
        ("TNN §3.1; SKI-TNN app. E.3", {("TNN", "§", "3.1"), ("SKI-TNN", "app", "E.3")}),
        ("MEGA (Ma et al. 2023), §3.2 and 3.3.", {("MEGA", "§", "3.2"), ("MEGA", "§", "3.3")}),
        ("MEGA, Ma et al. 2023, §3.1", {("MEGA", "§", "3.1")}),
        ("nothing here, TNN as such, nor SKI-TNN's theorem 2", set()),
    ],
)
def test_citations_are_read(equations: ModuleType, text: str, places: set) -> None:
    assert equations.cited_places(text) == places


FOLDERS = (ROOT / "docs", ROOT / "papers")
PAGES = [page for folder in FOLDERS for page in folder.rglob("*.md") if page.name != "log.md"]
PAGES = sorted([*ROOT.glob("*.md"), *PAGES])


def blocks(path: Path, *languages: str) -> list[str]:
    """The code blocks of a page."""
    matches = re.findall(r"^ *```(\w+)\n(.*?)^ *```", path.read_text(), re.S | re.M)
    return [textwrap.dedent(code) for language, code in matches if language in languages]


def commands(code: str) -> list[list[str]]:
    """The words of each command in a shell block, without comments and redirections."""
    lines = [shlex.split(line, comments=True) for line in code.replace("\\\n", " ").splitlines()]
    words = [list(itertools.takewhile(lambda word: word not in (">", "|", "<", "&"), line)) for line in lines]
    return [line for line in words if line]


def command_lines(code: str) -> list[list[str]]:
    """The words of each lagwise command in a shell block, after its name."""
    return [line[line.index("lagwise") + 1 :] for line in commands(code) if "lagwise" in line[:4]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_the_pages_is_valid(page: Path) -> None:
    """Python compiles, and commands know their options. Slow tests run the tutorials."""
    import click
    import typer

    from lagwise.cli.main import app

    for code in blocks(page, "python"):
        compile(code, str(page), "exec")
    root = typer.main.get_command(app)
    for words in itertools.chain.from_iterable(command_lines(code) for code in blocks(page, "sh", "bash")):
        command: Any = root
        context = click.Context(root, info_name="lagwise")
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            command, words = command.get_command(context, words[0]), words[1:]
            assert command is not None, f"{page.name}: lagwise has no command {words}"
        command.make_parser(context).parse_args(list(words))


@pytest.mark.parametrize("name", ["README", "CONTRIBUTING"])
def test_the_targets_of_make_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    lines = re.findall(r"^make ([a-z -]+)", "\n".join(blocks(ROOT / f"{name}.md", "sh")), re.M)
    targets = " ".join(lines).split()
    assert "test" in targets
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)


@pytest.mark.parametrize("name", ["benchmarks", "choosing", "family"])
def test_generated_page_is_current(name: str) -> None:
    """Every member of the family also has a source."""
    generator = script(name)
    assert generator.PAGE.read_text() == generator.page(), "run `make docs`"
    assert name != "family" or "| none |" not in generator.page()
    if name == "benchmarks":
        assert generator.PAPERS_PAGE.read_text() == generator.papers_page(), "run `make docs`"


def test_prose_is_wrapped() -> None:
    for page in [*PAGES, ROOT / "docs" / "log.md"]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "!["))]
        assert not long, f"{page.name}: {long[0]}"


def test_every_page_is_on_the_site_and_every_link_has_a_target() -> None:
    named = set(re.findall(r"[\w-][\w/-]*\.md", (ROOT / "mkdocs.yml").read_text()))
    docs = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert docs == named - {"changelog.md", "contributing.md", "governance.md", "conduct.md", "security.md"}
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_results_files_name_their_command_and_machine() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        content = json.loads(path.read_text())
        for key in ("command", "torch", "processor", "results"):
            assert content[key], f"{path.name}: {key}"


def test_the_kernel_of_the_tutorial_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class and one line in a table are enough to mix, stream and plot with it."""
    import torch

    from lagwise.analysis import learned_kernels
    from lagwise.kernels import KERNELS, LagKernel
    from lagwise.mixers import GTU

    monkeypatch.setitem(KERNELS, "exponential", LagKernel)  # and what the tutorial registers goes away again
    exec(blocks(ROOT / "docs" / "tutorials" / "kernel.md", "python")[0], {})
    assert KERNELS["exponential"].__name__ == "ExponentialKernel"
    mixer = GTU(4, kernel={"name": "exponential", "rate": 0.2}).double()
    x = torch.randn(1, 50, 4, dtype=torch.float64)
    first, state = mixer.prefill(x[:, :30], mixer.init_state(1))
    rest, _ = mixer.prefill(x[:, 30:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), mixer(x), rtol=0, atol=1e-10)
    assert learned_kernels(mixer, 10)[0].taps.shape == (12, 10)


def test_the_stream_of_sound_in_signals_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes a sound of the length of the one it reads, equal to the output for the whole."""
    import numpy as np
    import torch
    from scipy.io import wavfile

    from lagwise.models import LagwiseConfig, LagwiseForSignalRegression
    from lagwise.models.signal_stream import whole_output

    code = next(block for block in blocks(ROOT / "docs" / "signals.md", "python") if "StreamingRegressor" in block)
    monkeypatch.chdir(tmp_path)
    outputs = {"delay": 128, "window": 512}
    options = {"hidden_size": 8, "num_hidden_layers": 1, "block": {"name": "prenorm", "token_mixer": {"name": "tcn"}}}
    model = LagwiseForSignalRegression(
        LagwiseConfig(**options, inputs={"name": "values", "stride": 32}, outputs=outputs)
    )
    torch.nn.init.normal_(model.outputs.direct.weight)
    model.save_pretrained("runs/denoise")
    samples = np.random.default_rng(0).integers(-9000, 9000, 2345).astype(np.int16)
    wavfile.write("call.wav", 16000, samples)
    exec(code, {})
    rate, made = wavfile.read("quiet.wav")
    assert rate == 16000
    expected = whole_output(model.eval(), torch.tensor(samples / 32768, dtype=torch.float32)[:, None])
    np.testing.assert_allclose(made, expected[:, 0], atol=1e-4)


def test_the_search_in_vectors_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lagwise.data import load_tokenizer
    from lagwise.models import LagwiseConfig, LagwiseForCausalLM
    from lagwise.runs import embed_run

    (code,) = blocks(ROOT / "docs" / "vectors.md", "python")
    monkeypatch.chdir(tmp_path)
    LagwiseForCausalLM(LagwiseConfig(hidden_size=8, num_hidden_layers=1)).save_pretrained("runs/notes")
    load_tokenizer("bytes").save_pretrained("runs/notes")
    texts = ["how to cancel a timer", "x" * 300, "a day"]
    rows = [json.dumps({"id": f"note {len(text)}", "text": text}) for text in texts]
    Path("notes.jsonl").write_text("\n".join(rows))
    embed_run(Path("runs/notes"), ["notes.jsonl"], Path("notes.parquet"), window=256, stride=128, progress=False)
    exec(code, {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert printed[0].endswith("notes.jsonl 1 note 21 0")


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "index.md"], ids=lambda page: page.stem)
def test_the_torch_to_install_first_is_the_tested_one(page: Path) -> None:
    """With another, pip would replace a CPU build by the one of constraints.txt, with CUDA."""
    (tested,) = re.findall(r"^torch==.*", (ROOT / "constraints.txt").read_text(), re.M)
    assert re.findall(r"pip\s+install\s+(torch\S*)", page.read_text()) == [tested]
