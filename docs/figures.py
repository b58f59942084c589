"""Draw the figures of docs/figures from files in benchmarks/results.

Run it (`make docs`) after one of their benchmarks. results.png, at the top of the README: the layer's speed (`lagwise
bench ops`), streaming (`lagwise bench generate`) and encoders (`benchmarks/encoder_speed.py`). encoders.png: losses of
pretraining (`benchmarks/encoders.py`). pictures.png: accuracies of image classifiers (`benchmarks/pictures.py`).
language.png: language models of one size (`papers/benchmarks/language.py`). arena.png: accuracies on Long Range Arena
(`papers/benchmarks/arena.py`). watch.png: surprise of the lines of a log (`benchmarks/watch.py`). chip.png: models of
spoken prompts as C code (`benchmarks/chip.py`). vectors.png: memory of the vector of a long text
(`benchmarks/embed_memory.py`), and recall of searches (`benchmarks/search.py`).
"""

from __future__ import annotations

import textwrap
from itertools import zip_longest
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from adjustText import adjust_text
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from measured.family import at_trained_length, by_model, perplexities
from tables import ROOT, has_results, results

FIGURES = ROOT / "docs" / "figures"
_OURS, _PEER = "#0b6e4f", "#9aa0a6"
_FLAT = 0.02  # largest change of a perplexity with the length that the figure does not tell apart
_FAILED = 3  # times the perplexity at the trained length, from which on a logarithmic axis is needed


def training() -> tuple[list[int], list[float]]:
    """Speed of a training step of two-sided SKI-TNN over TNN as published, by length."""
    rows = [row for row in results("ops-cpu.json")["results"]["rows"] if not row["causal"]]
    steps = [row["step"] for row in rows]
    return [row["length"] for row in rows], [s["literal tnn"]["median"] / s["ski-tnn"]["median"] for s in steps]


def streaming(method: str) -> tuple[list[int], list[float]]:
    """Tokens per second of a small model that streams one sequence, by the tokens before."""
    rows = [r for r in results("generate-cpu.json")["results"]["models"] if r["method"] == method and r["batch"] == 1]
    return [row["length"] for row in rows], [1 / row["token"]["median"] for row in rows]


def encoding() -> tuple[list[int], list[float]]:
    """Speed of a forward pass of encoder-base over ModernBERT-base in float32, one sequence, by length."""
    content = results("encoder-speed-cpu.json")["results"]
    ours, theirs = content["parameters"]
    rows = [row for row in content["rows"] if (row["dtype"], row["batch"]) == ("float32", 1)]
    seconds = [row["seconds"] for row in rows]
    return [row["length"] for row in rows], [s[theirs]["median"] / s[ours]["median"] for s in seconds]


def draw_results() -> None:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 2.9), layout="constrained")
    lengths, ratios = training()
    left.plot(lengths, ratios, color=_OURS, marker="o", markersize=4)
    left.axhline(1, color=_PEER, linestyle="--", linewidth=1)
    left.set_title(f"SKI-TNN layer, training step\n{ratios[-1]:.0f}× TNN as published at {lengths[-1]:,} tokens")
    left.set_ylabel("times as fast")
    for method, label, color in (("converted TNN", "TNN, converted", _OURS), ("attention", "attention", _PEER)):
        contexts, speeds = streaming(method)
        middle.plot(contexts, speeds, color=color, marker="o", markersize=4, label=label)
    gain = streaming("converted TNN")[1][-1] / streaming("attention")[1][-1]
    middle.set_title(f"Streaming a 1.7M model, batch 1\n{gain:.0f}× attention with a cache at {contexts[-1]:,} tokens")
    middle.set_ylabel("tokens per second")
    middle.legend(frameon=False)
    lengths, ratios = encoding()
    right.plot(lengths, ratios, color=_OURS, marker="o", markersize=4)
    right.axhline(1, color=_PEER, linestyle="--", linewidth=1)
    right.set_title(f"encoder-base (111M), forward pass\n{ratios[-1]:.1f}× ModernBERT-base at {lengths[-1]:,} tokens")
    right.set_ylabel("times as fast")
    for axes in (left, middle, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("tokens")
        axes.grid(alpha=0.25)
        axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
    _save(figure, "results.png")


def draw_encoders() -> None:
    """Validation losses over the time that every model had."""
    figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
    runs = sorted(results("encoders-cpu.json")["results"].items(), key=lambda item: item[1]["curve"][-1][1])
    for name, run in runs:
        steps, losses, _ = zip(*run["curve"], strict=True)
        axes.plot([60 * step / run["steps"] for step in steps], losses, label=f"{name} {losses[-1]:.2f}")
    axes.set_xlabel("minutes on one thread")
    axes.set_ylabel("validation loss, nats a hidden token")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    _save(figure, "encoders.png")


def draw_images() -> None:
    """Validation accuracies of CIFAR-10 over the time of each training."""
    figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
    for name, run in results("pictures-cpu.json")["results"].items():
        if run["data"] == "cifar":
            seconds, _, _, accuracies = zip(*run["curve"], strict=True)
            axes.plot([each / 60 for each in seconds], accuracies, label=f"{name} {accuracies[-1]:.3f}")
    axes.set_xlabel("minutes on one thread")
    axes.set_ylabel("validation accuracy")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    _save(figure, "pictures.png")


def draw_language() -> None:
    """Test perplexities of the models of one size: over the speed of their training, and over the length."""
    models = by_model(results("language-family-cpu.json")["results"])
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 5), layout="constrained")
    names = []
    for model, runs in models.items():
        position = runs[0]["tokens_per_second"], at_trained_length(runs)
        left.scatter(*position, s=12, color=_OURS)
        names.append(left.text(*position, model, fontsize=7))
    left.set_yscale("log")
    left.yaxis.set_major_locator(MaxNLocator(6))
    left.yaxis.set_minor_locator(NullLocator())
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left.set_xlabel("tokens a second of training, one thread")
    left.set_ylabel("test perplexity at 512")
    flat: list[str] = []
    for model, runs in models.items():
        scores = perplexities(runs[0])
        if len(scores) > 1:
            lengths, values = zip(*sorted(scores.items()), strict=True)
            ratios = [value / values[0] for value in values]
            changed = abs(ratios[-1] - 1) > _FLAT
            right.plot(lengths, ratios, marker="o", markersize=3, color=None if changed else _OURS, zorder=2 + changed)
            if changed:
                position = lengths[-1], ratios[-1]
                right.annotate(model, position, xytext=(-4, 4), textcoords="offset points", fontsize=7, ha="right")
            else:
                flat.append(model)
    right.axhline(1, color=_PEER, linestyle="--", linewidth=1)
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter(FuncFormatter(_thousands))
    if right.get_ylim()[1] > _FAILED:
        right.set_yscale("log")
        right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    right.set_xlabel("tokens")
    right.set_ylabel("test perplexity over that at 512")
    within = textwrap.fill(f"within {_FLAT:.0%} of 1: {', '.join(flat)}", 52, break_on_hyphens=False)
    right.text(0.03, 0.97, within, transform=right.transAxes, va="top", fontsize=7, color=_OURS)
    for axes in (left, right):
        axes.grid(alpha=0.25)
    figure.draw_without_rendering()  # the labels need the final size of the axes
    np.random.seed(0)  # noqa: NPY002 (of shifts that `adjust_text` tries)
    line = {"arrowstyle": "-", "color": _PEER, "linewidth": 0.6}
    adjust_text(names, ax=left, arrowprops=line, expand=(1.25, 1.6), force_text=(0.3, 0.6), force_static=(0.3, 0.6))
    _save(figure, "language.png")


def draw_chip() -> None:
    """Accuracy on spoken prompts, flash and RAM of the C code of three models."""
    content = results("chip-cpu.json")["results"]
    rows = {}
    for name, kind in (("signal", "float"), ("chip", "float"), ("chip", "int8")):
        run = content[f"{name}-prompts"]
        code, accuracy = run[kind], run["test"]["accuracy"] if kind == "float" else run[kind]["int8"]["int8"]
        ram = (code["state_bytes"] + code["stack_bytes"]) / 1024
        rows[f"{name}, {'float32' if kind == 'float' else kind}"] = accuracy, code["flash_bytes"] / 1024, ram
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 2.1), sharey=True, layout="constrained")
    titles = ("language of a spoken prompt,\naccuracy", "code and weights, KiB", "state and stack, KiB")
    for axes, title, values in zip(panels, titles, zip(*rows.values(), strict=True), strict=True):
        bars = axes.barh(list(rows), values, color=[_OURS if "chip" in name else _PEER for name in rows])
        axes.bar_label(bars, fmt="%.3f" if max(values) <= 1 else "%.0f", fontsize=8, padding=2)
        axes.set_title(title, fontsize=9)
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    _save(figure, "chip.png")


def draw_arena() -> None:
    """Validation accuracies of Long Range Arena over the time of each training, a panel for each task."""
    runs = {name: run for name, run in results("arena-cpu.json")["results"].items() if "curve" in run}
    tasks = list(dict.fromkeys(name.partition("-")[0] for name in runs))
    columns = min(3, len(tasks))
    size = {"figsize": (3.4 * columns, 2.8 * -(-len(tasks) // columns)), "squeeze": False, "layout": "constrained"}
    figure, grid = plt.subplots(-(-len(tasks) // columns), columns, **size)
    for axes, task in zip_longest(grid.flat, tasks):
        if task is None:
            axes.remove()
            continue
        for name, run in runs.items():
            of, _, model = name.partition("-")
            if of == task:
                steps, _, accuracies = zip(*run["curve"], strict=True)
                minutes = [run["elapsed_seconds"] / 60 * step / steps[-1] for step in steps]
                axes.plot(minutes, [100 * each for each in accuracies], label=model)
        axes.set_title(task)
        axes.set_xlabel("minutes on one thread")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=7)
    for row in grid:
        row[0].set_ylabel("validation accuracy, %")
    _save(figure, "arena.png", ROOT / "papers" / "docs" / "figures")


def draw_watch() -> None:
    """Bits per byte of the lines of a log, and the average precision of methods."""
    content = results("watch-cpu.json")["results"]
    ours, odd = content["lagwise watch"], np.array(content["odd"])
    scores = np.array(ours["scores"])
    usual = np.setdiff1d(np.arange(len(scores)), odd)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3), width_ratios=(2, 1), layout="constrained")
    left.scatter(usual, scores[usual], s=7, color=_PEER, label=f"{len(usual)} lines labelled normal")
    left.scatter(odd, scores[odd], s=14, color="#c2410c", label=f"{len(odd)} with another label")
    left.axhline(ours["threshold"], color=_OURS, linestyle="--", linewidth=1, label="threshold for 1 % alarms")
    left.set_ylim(0, 1.3 * ours["threshold"])
    left.set(xlabel="line", ylabel="bits per byte", title="lagwise watch on BGL, in order of time")
    left.legend(frameon=False, fontsize=7, ncols=3, loc="upper left")
    names = ["lagwise watch", "lagwise watch --learn", "isolation forest", "templates"]
    values = [content[name]["average_precision"] for name in names]
    right.barh(names[::-1], values[::-1], color=[_PEER, _PEER, _OURS, _OURS])
    right.axvline(len(odd) / len(scores), color="0.3", linestyle=":", linewidth=1)
    right.set_title("average precision (dotted: chance)")
    _save(figure, "watch.png")


def _thousands(n: float, _: int) -> str:
    return f"{n / 1024:.0f}k" if n >= 1024 else f"{n:.0f}"


def _save(figure: Figure, name: str, folder: Path | None = None) -> None:
    folder = folder or FIGURES
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / name, dpi=130, metadata={"Software": None})


def draw_vectors() -> None:
    """Memory over the length of a text, and how well vectors find texts."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.4), layout="constrained", width_ratios=(1, 1.1))
    for name, rows in results("embed-memory-cpu.json")["results"].items():
        memory = {int(length): row["memory"] / 2**20 for length, row in rows.items() if "memory" in row}
        peer = name.endswith("BERT")
        (line,) = left.plot([*memory], [*memory.values()], "s--" if peer else "o-", label=name, markersize=4)
        for length in (int(length) for length, row in rows.items() if "failed" in row):
            left.plot([max(memory), length], [max(memory.values())] * 2, ":", color=line.get_color(), linewidth=1)
            left.plot(length, max(memory.values()), "x", color=line.get_color(), markersize=8)
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("tokens of one text (x: too much memory or time)")
    left.set_ylabel("MiB beyond the model")
    left.grid(alpha=0.25)
    left.legend(frameon=False, fontsize=8)
    content = results("search-cpu.json")["results"]["recall"]
    names = {name: name for name in ("chance", "TF-IDF", "BM25")}
    names |= {f"{name}, mean, whitened": f"{name}, whitened" for name in ("encoder", "best-lm")}
    for row, (kind, label) in enumerate({"recall@10": "summary → text", "same file": "text → same file"}.items()):
        positions = [position + 0.4 * row for position in range(len(names))]
        values = [content[name][kind] for name in names]
        bars = right.barh(positions, values, 0.38, color=(_OURS, _PEER)[row], label=label)
        right.bar_label(bars, fmt="%.2f", padding=3)
    right.set_yticks([position + 0.2 for position in range(len(names))], [*names.values()])
    right.invert_yaxis()
    right.set_xlim(0, 0.8)
    right.set_xlabel("share found (recall among 10; nearest neighbour)")
    right.legend(frameon=False, fontsize=8, loc="lower right")
    _save(figure, "vectors.png")


if __name__ == "__main__":
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    draw_results()
    draw_encoders()
    if has_results("embed-memory-cpu.json") and has_results("search-cpu.json"):
        draw_vectors()
    if has_results("pictures-cpu.json"):
        draw_images()
    if has_results("language-family-cpu.json"):
        draw_language()
    if has_results("arena-cpu.json"):
        draw_arena()
    if has_results("watch-cpu.json"):
        draw_watch()
    if has_results("chip-cpu.json"):
        draw_chip()
