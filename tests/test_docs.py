"""The documents agree with the code and with the results files."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def script(name: str) -> ModuleType:
    """A script that writes a page."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def equations() -> ModuleType:
    return script("equations")


def test_family_page_is_current() -> None:
    """And no member is without a source."""
    family = script("family")
    assert family.PAGE.read_text() == family.page(), "run `make docs`"
    assert "| none |" not in family.page()


def test_equations_page_is_current(equations: ModuleType) -> None:
    assert equations.PAGE.read_text() == equations.page(), "run `make docs`"


def test_every_cited_place_is_tested(equations: ModuleType) -> None:
    rows = [line for line in equations.page().splitlines() if line.startswith(("| TNN", "| SKI", "| TCNCA"))]
    assert len(rows) >= 10
    untested = [row for row in rows if not row.split("|")[3].strip()]
    assert not untested


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("as in TNN eq. 5.", {("TNN", "equation", "5")}),
        ("(TNN §3.3 and eq. 5)", {("TNN", "section", "3.3"), ("TNN", "equation", "5")}),
        ("TNN tables 8 to 10", {("TNN", "table", n) for n in ("8", "9", "10")}),
        ("TNN eq. 1, 6 and 9", {("TNN", "equation", n) for n in ("1", "6", "9")}),
        (
            "TNN §3.1 and fig. 2; SKI-TNN app. A",
            {("TNN", "section", "3.1"), ("TNN", "figure", "2"), ("SKI-TNN", "appendix", "A")},
        ),
        ("nothing here, TNN as such", set()),
    ],
)
def test_citations_are_read(equations: ModuleType, text: str, places: set) -> None:
    assert equations.cited_places(text) == places


def test_the_commands_of_the_readme_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"\bmake ([a-z-]+)", readme))
    assert {"demo", "test"} <= targets
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)
    from lagwise.cli.main import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {group.name for group in app.registered_groups}
    used = set(re.findall(r"\blagwise ([a-z]+) ", readme)) - {"is", "and"}
    assert used <= known


def test_results_files_name_their_command_and_machine() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        content = json.loads(path.read_text())
        for key in ("command", "torch", "processor", "results"):
            assert content[key], f"{path.name}: {key}"


def test_continuous_integration_calls_the_readmes_test_command() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_readmes_figures_are_those_of_the_results_files() -> None:
    readme = (ROOT / "README.md").read_text()
    results = ROOT / "benchmarks" / "results"

    def layers(name: str) -> list[dict]:
        return json.loads((results / name).read_text())["results"]["layers"]

    def ratio(row: dict) -> float:
        return row["seconds"]["literal"]["median"] / row["seconds"]["lagwise"]["median"]

    for default, raised in zip(layers("toeplitz-cpu-default-allocator.json"), layers("toeplitz-cpu.json"), strict=True):
        ours, literal = (round(raised["memory"][name] / 2**20) for name in ("lagwise", "literal"))
        speed = f"| {default['length']} | {ratio(default):.1f}× | {ratio(raised):.1f}× |"
        assert f"{speed} {ours} MB against {literal} MB |" in readme
    for run in json.loads((results / "novels-tnn-transformer.json").read_text())["results"].values():
        scores = {s["length"]: s["bits_per_byte"] for s in run["evaluation"]["test"]}
        assert f"| {run['parameters'] / 1e6:.2f}M | {run['steps_per_second']:.2f} |" in readme
        assert all(f"{scores[n]:.3f}" in readme for n in (512, 2048, 14336) if n in scores)


def test_the_readmes_comparison_of_kernels_is_that_of_the_results_files() -> None:
    readme = (ROOT / "README.md").read_text()
    results = ROOT / "benchmarks" / "results"
    rows = {
        (r["causal"], r["length"]): r for r in json.loads((results / "ops-cpu.json").read_text())["results"]["rows"]
    }

    def ratio(causal: bool, length: int, slow: str, fast: str) -> str:
        step = rows[causal, length]["step"]
        return f"{step[slow]['median'] / step[fast]['median']:.1f}×"

    for length in (512, 1024, 2048, 4096, 8192, 16384, 32768):
        memory = rows[False, length]["memory"]
        cells = (
            ratio(True, length, "tnn λ=1", "tnn λ=1 ski"),
            ratio(False, length, "tnn", "ski-tnn"),
            ratio(False, length, "literal tnn", "ski-tnn"),
            ", ".join(f"{memory[name] / 2**20:.0f}" for name in ("ski-tnn", "tnn", "literal tnn")) + " MB",
            f"{ratio(True, length, 'tnn', 'fd-tnn 256')}, {ratio(False, length, 'tnn', 'fd-tnn 256')}",
        )
        assert f"| {length} | {' | '.join(cells)} |" in readme
    blocks = json.loads((results / "blocks-cpu.json").read_text())["results"]["rows"]

    def span(size: str, causal: bool, slow: str, fast: str) -> str:
        of_interest = [r["seconds"] for r in blocks if (r["block"], r["causal"]) == (size, causal)]
        ratios = [seconds[slow]["median"] / seconds[fast]["median"] for seconds in of_interest]
        return f"{min(ratios):.2f}–{max(ratios):.2f}×"

    for size, causal in itertools.product(("recipe", "paper"), (True, False)):
        spans = [span(size, causal, "tnn", name) for name in ("fd-tnn", "fd-tnn, grid 256", "ski-tnn", "taps")]
        spans.append(span(size, causal, "published", "fd-tnn"))
        assert f"| {size}, {'causal' if causal else 'two-sided'} | {' | '.join(spans)} |" in readme
    for name, run in json.loads((results / "novels-tnn-fd-ski.json").read_text())["results"].items():
        scores = {s["length"]: f"{s['bits_per_byte']:.3f}" for s in run["evaluation"]["test"]}
        valid = f"{run['evaluation']['valid']['bits_per_byte']:.3f}"
        head = f"| {name} | {run['parameters'] / 1e6:.2f}M | {valid} | "
        assert head + " | ".join(scores[n] for n in (512, 2048, 14336)) + " |" in readme


def test_the_kernel_of_the_contributing_guide_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """One class and one line in a table are enough to mix, stream and plot with it."""
    import torch
    from torch import Tensor, nn

    from lagwise.analysis import learned_kernels
    from lagwise.kernels import KERNELS, LagKernel
    from lagwise.mixers import GTU

    text = (ROOT / "CONTRIBUTING.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.S)
    assert code is not None
    names: dict = {"LagKernel": LagKernel, "torch": torch, "nn": nn, "Tensor": Tensor}
    exec(textwrap.dedent("   " + code.group(1)), names)
    monkeypatch.setitem(KERNELS, "exponential", names["ExponentialKernel"])
    mixer = GTU(4, kernel={"name": "exponential", "rate": 0.2}).double()
    x = torch.randn(1, 50, 4, dtype=torch.float64)
    first, state = mixer.prefill(x[:, :30], mixer.init_state(1))
    rest, _ = mixer.prefill(x[:, 30:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), mixer(x), rtol=0, atol=1e-10)
    assert learned_kernels(mixer, 10)[0].taps.shape == (12, 10)


def test_the_readmes_figures_of_mega_and_tcnca_are_those_of_the_results_files() -> None:
    readme = (ROOT / "README.md").read_text()
    results = ROOT / "benchmarks" / "results"

    def load(name: str) -> Any:
        return json.loads((results / name).read_text())["results"]

    def seconds(row: dict, method: str) -> tuple[float, float]:
        forward = row["forward"][method]["median"]
        return forward, row["step"][method]["median"] - forward

    for row in load("ema-vs-tcn-cpu.json")["causal"]:
        tcn, scan = seconds(row, "tcn"), seconds(row, "ema by scan")
        cells = []
        for slow, fast in (("mega ema", tcn), ("ema by fft", tcn), ("mega ema", scan), ("ema by fft", scan)):
            cells.append("{:.1f}×, {:.1f}×".format(*(a / b for a, b in zip(seconds(row, slow), fast, strict=True))))
        assert f"| {row['length']} | {' | '.join(cells)} |" in readme
    recall = load("recall-cpu.json")
    for name in recall["64/10"]:
        cells = " | ".join(f"{100 * recall[case][name]['accuracy']:.1f}" for case in recall)
        assert f"| {name} | {cells} |" in readme
    for name, run in load("enwik8-cpu.json").items():
        scores = {s["length"]: f"{s['bits_per_byte']:.3f}" for s in run["evaluation"]["test"]}
        head = f"| {name} | {run['parameters'] / 1e6:.2f}M | {run['evaluation']['valid']['bits_per_byte']:.3f} | "
        assert head + " | ".join(scores[n] for n in (512, 2048, 8192)) + " |" in readme


def test_the_readmes_figures_of_streaming_are_those_of_the_results_file() -> None:
    readme = (ROOT / "README.md").read_text()
    results = json.loads((ROOT / "benchmarks" / "results" / "generate-cpu.json").read_text())["results"]
    for rows in results.values():
        one = {(row["method"], row["length"]): row for row in rows if row["batch"] == 1}
        for name in dict.fromkeys(method for method, _ in one):
            speeds = [1 / one[name, n]["token"]["median"] for n in (1024, 16384, 131072)]
            over = [
                speeds[1] * one[peer, 16384]["token"]["median"] for peer in ("recompute", "ring buffer", "attention")
            ]
            cells = [*(f"{v:,.0f}" if v >= 10 else f"{v:.1f}" for v in speeds), *(f"{ratio:.1f}×" for ratio in over)]
            held = one[name, 131072]["memory"] / 2**20
            assert f"| {name} | {' | '.join(cells)} | {f'{held:,.1f} MB' if held else 'none'} |" in readme


def test_the_readmes_figures_of_conversion_are_those_of_the_results_file() -> None:
    readme = (ROOT / "README.md").read_text()
    results = json.loads((ROOT / "benchmarks" / "results" / "conversion-cpu.json").read_text())["results"]
    for row in results["rows"]:
        median, most = (max(layer["order"][i] for layer in row["layers"]) for i in (1, 2))
        error, bound = (max(layer[key] for layer in row["layers"]) for key in ("error", "bound"))
        score, speed = row["bits_per_byte"][0], row["tokens_per_second"]
        held = ", ".join(f"{row[key] / 2**20:.1f}" for key in ("state", "n_states_state", "converted_state"))
        cells = [row["run"], f"{row['tolerance']:g}", row["taps"], f"{median}, {most}", f"{error:.1e}, {bound:.1e}"]
        cells += [f"{score['before']:.4f}", f"{score['after'] - score['before']:+.1e}", f"{held} MB"]
        cells.append(f"{speed['after'] / speed['n states']:.1f}×")
        assert f"| {' | '.join(map(str, cells))} |" in readme


def test_the_figures_of_signals_are_those_of_the_results_files() -> None:
    page = (ROOT / "docs" / "signals.md").read_text()
    results = ROOT / "benchmarks" / "results"
    for name, run in json.loads((results / "ecg-cpu.json").read_text())["results"].items():
        assert f"{run['parameters']:,}" in page
        for how in ("without", "with"):
            scores = run[f"{how}_positions"]
            pairs = (scores["classes"][kind] for kind in "NSVFQ")
            cells = [f"{scores['accuracy']:.3f}", *(f"{p['recall']:.3f} / {p['precision']:.3f}" for p in pairs)]
            cells += [f"{scores['found']:.3f}", f"{scores['precision']:.3f}"] if how == "without" else []
            assert re.search(rf"\| {name}[^|]*\| {how} \| {re.escape(' | '.join(cells))} \|", page)
        assert not run["causal"] or f"at most {run['delay_seconds']:.3f} s late" in page
    for speed in json.loads((results / "ecg-stream-cpu.json").read_text())["results"]:
        digits = 3 if speed["chunk"] == 1 else 1
        times = f"{1e3 * speed['median']:.{digits}f} | {1e3 * speed['late']:.1f} | {speed['real_time']:.0f}"
        assert speed["chunk"] == 12 or re.search(rf"\| {speed['chunk']} \| [\d.]+ \| {re.escape(times)} \|", page)


def test_the_figures_of_forecasting_are_those_of_the_results_files() -> None:
    from lagwise.bench.forecasting import coverage_rows, table_rows

    page = (ROOT / "docs" / "forecasting.md").read_text()
    results = ROOT / "benchmarks" / "results"
    cells = json.loads((results / "forecast-cpu.json").read_text())["results"]["cells"]
    lines = table_rows(cells)[1] + (coverage_rows(cells)[1] if "coverage" in cells[0] else [])
    for line in lines:
        assert f"| {' | '.join(line)} |" in page
    ridge = next(line for line in lines if line[0] == "ridge")
    assert f"reaches a mean squared error of {ridge[-2]} (the mean of the 16 ETT cells" in page
    for row in json.loads((results / "forecast-peers-cpu.json").read_text())["results"]["rows"]:
        figures = f"{row['seconds']:.1f} | {row['bytes'] / 2**20:,.0f} | {row['mse']:.4f}"
        assert f"| {row['method']} | {row['data']} | {figures} |" in page
