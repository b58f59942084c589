"""The sections about what a GPU would do, counted without one, and about what one did."""

from __future__ import annotations

from typing import Any

from tables import has_results, measured_table, results, table

from lagwise.ops import EXACT_ENGINES

_NAME = "gpu-counts.json"
_TRANSFORMER = "transformer-alibi-lm"


def counts() -> str:
    content = results(_NAME)["results"]
    shapes = list(dict.fromkeys((row["batch"], row["length"]) for row in content["rows"]))
    now, before = (
        {(row["model"], row["batch"], row["length"]): row for row in rows}
        for rows in (content["rows"], content["before"]["rows"])
    )
    rows = []
    for model in dict.fromkeys(row["model"] for row in content["rows"]):
        pairs = [(before.get((model, *shape)), now.get((model, *shape))) for shape in shapes]
        middle = pairs[shapes.index((4, 2048))]
        cells = [_change(pair, "times_least", 1) for pair in pairs]
        calls, peak = _change(middle, "calls", 0), _change(middle, "peak", 0, 1e6)
        rows.append([model, *cells, calls, peak, _change(middle, "waits", 0)])
    columns = ["model", *(f"{batch} × {length:,}" for batch, length in shapes), "calls", "MB", "waits"]
    commit = content["before"]["commit"][:7]
    return f"""## What a GPU would do

A layer's training step (512 channels, bfloat16 autocast) on a CUDA device that does nothing: its operations are counted
on fake tensors, exactly and repeatably, and no time is predicted. Bytes are multiples of the least, for batch × length:
every activation is written once and read once where it is used, norms, gates and residual sums are fused into the
products beside them, and the backward pass moves twice as much. Calls start at least one kernel each; calls, memory
at its peak and waits of the host are those of 4 × 2,048. A kernel in Triton counts as one pass over its inputs and
outputs. Figures before the arrow are from before these kernels (commit {commit}).

The rows below {_TRANSFORMER} are for comparison: the same layers around a convolution written with torch.fft, around
the published operator, and GPT-2 of transformers with fused attention. Attention's own reads of keys count once.

{measured_table(_NAME, columns, rows)}"""


def _change(
    pair: tuple[dict[str, Any] | None, dict[str, Any] | None], figure: str, digits: int, unit: float = 1
) -> str:
    values = [f"{row[figure] / unit:,.{digits}f}" for row in pair if row is not None]
    return " → ".join(dict.fromkeys(values)) or "-"


def graphs() -> str:
    """The launches of compiled steps beside those of eager ones."""
    name = "gpu-graphs.json"
    if not has_results(name):
        return ""
    kinds = ["products", "operators", "kernels", "casts", "sums", "loops"]
    rows = [
        [
            row["model"],
            *(f"{calls:.0f}" for calls in (row["eager"], row["compiled"]["calls"], row["combined"]["calls"])),
            *(f"{row['compiled']['kinds'][kind]:.0f}" for kind in kinds),
            row["compiled"]["waits"],
            row["compiled"]["refused"] or "yes",
        ]
        for row in results(name)["results"]["rows"]
    ]
    columns = ["model", "eager calls", "compiled", "with combo_kernels", *kinds, "waits", "CUDA graph"]
    return f"""### Through torch.compile

Launches of a layer's training step at 4 × 2,048 (512 channels, bfloat16 autocast), as inductor schedules its graphs for
an H100; nothing ran. Graphs call the kernels in Triton that eager steps call, and inductor joins operations between
them. Its option `combo_kernels` puts independent loops into one launch. The compiled launches by kind: matrix products
and other calls of PyTorch's; calls in lagwise's operators, of products by FFT and SKI and of small networks; fused
kernels; casts of weights, and sums for gradients of biases; loops that inductor generates. The first three are what is
left if casts, sums and loops are all fused into others. Waits are of the host, in a whole model; a graph without any
can be a CUDA graph (`mode="reduce-overhead"`).

{measured_table(name, columns, rows)}"""


def measured() -> str:
    """The times on a card, beside the counts."""
    name, layers = "gpu-steps-h100.json", "toeplitz-h100.json"
    content = results(name)
    idle = content["results"]["idle_host"]
    rows = [
        [
            row["model"],
            f"{row['counted']['bytes_seconds'] * 1e3:.2f}",
            f"{row['graph'] * 1e3:.2f}",
            f"{row['eager'] * 1e3:.1f}",
            f"{idle['eager'][row['model']] * 1e3:.1f}",
            f"{row['peak'] / 1e6:,.0f}",
        ]
        for row in content["results"]["rows"]
        if (row["batch"], row["length"]) == (4, 2048)
    ]
    columns = ["model", "ms, bytes alone", "ms, CUDA graph", "ms, launched by Python", "ms, on an idle host", "MB"]
    times: dict[tuple[Any, ...], float] = {
        (row["model"], row["batch"], row["length"]): row["graph"] for row in content["results"]["rows"]
    }
    shapes = ((16, 512), (4, 2048), (1, 8192), (1, 131072))
    other_shapes = [
        [model, *(f"{times[model, *shape] * 1e3:.2f}" if (model, *shape) in times else "-" for shape in shapes)]
        for model in ("tnn-lm", "best-lm", "torch.fft", "GPT-2")
    ]
    of_shape = ["ms, CUDA graph", *(f"{batch} × {length:,}" for batch, length in shapes)]
    of_length = [
        [
            f"{row['batch']} × {row['length']:,}",
            *(f"{row['seconds'][who]['median'] * 1e3:.1f}" for who in ("lagwise", "literal")),
            *(f"{row['memory'][who] / 1e6:,.0f}" for who in ("lagwise", "literal")),
        ]
        for row in results(layers)["results"]["layers"]
    ]
    heads = ["batch × length", "ms", "published, ms", "MB", "published, MB"]
    limits = content["results"]["ceilings"]
    copied, launched = limits["bytes_per_second"] / 1e12, limits["launch_seconds"] * 1e6
    return f"""### On a card

The same layers on one {content["gpu"]} with PyTorch {content["torch"]}, which copies {copied:.1f} TB/s
and takes {launched:.0f} µs to launch the smallest kernel from its host: a training step of 4 × 2,048, a layer.
"Bytes alone" are the counted bytes at the speed of a copy. As a CUDA graph, a step takes the time of the card. Launched
one by one from Python, every model here waits for its host: at this size a step is launches, and the models with most
code of their own are slowest. Other processes used the host meanwhile: the last times are of an idle one, which
launched the smallest kernel in {1e6 * idle["launch_seconds"]:.0f} µs, at commit {idle["commit"][:7]}.
`training.compile=reduce-overhead` trains by CUDA graphs. Losses and gradients are first checked against those without
autocast and fused kernels.

{measured_table(name, columns, rows)}

Other shapes of as many tokens, and a long one, of which GPT-2's was not timed:

{measured_table(name, of_shape, other_shapes)}

A Toeplitz layer of 512 channels in float32 beside the published one, launched from Python. Up to 8,192 tokens the
kernel network's launches take most of the time.

{measured_table(layers, heads, of_length)}"""


def cards() -> str:
    """The times on another card, after the kernels had changed, and those of compiled steps."""
    name = "gpu-steps-h200.json"
    content = results(name)
    by_shape: dict[tuple[Any, ...], Any] = {
        (row["model"], row["batch"], row["length"]): row for row in content["results"]["rows"]
    }
    shapes = ((16, 512), (4, 2048), (1, 8192), (1, 131072))
    rows = [
        [model, *(_milliseconds(by_shape.get((model, *shape)), "graph") for shape in shapes)]
        for model in dict.fromkeys(row["model"] for row in content["results"]["rows"])
    ]
    hows = {"eager": "launched by Python", "compiled": "layers compiled", "graph": "CUDA graph"}
    hows["reduce_overhead"] = "compiled, as CUDA graphs"
    compiled = [
        [row["model"], *(_milliseconds(row, how) for how in hows)]
        for row in content["results"]["rows"]
        if "reduce_overhead" in row
    ]
    copied = content["results"]["ceilings"]["bytes_per_second"] / 1e12
    return f"""## On a GPU

On one {content["gpu"]}, which copies {copied:.1f} TB/s, with an idle host, milliseconds of a layer as a CUDA graph. Of
4 × 2,048, only two models could be timed:

{measured_table(name, ["ms, CUDA graph", *(f"{batch} × {length:,}" for batch, length in shapes)], rows)}

`training.compile=true` compiles layers, and launches them from Python: no faster at this size, where the host is what
takes the time. `training.compile=reduce-overhead` compiles the model and launches CUDA graphs. Of 4 × 2,048:

{table(["ms", *hows.values()], compiled)}"""


def _milliseconds(row: dict[str, Any] | None, how: str) -> str:
    return "-" if row is None or how not in row else f"{row[how] * 1e3:.2f}"


def engines() -> str:
    """The engines of the product on a card."""
    name = "gpu-engines-h200.json"
    content = results(name)["results"]
    engines = [name for name in EXACT_ENGINES if any(name in row["picoseconds"] for row in content["rows"])]
    rows = [
        [f"{row['lags']:,}", *(f"{row['picoseconds'][e]:.0f}" if e in row["picoseconds"] else "-" for e in engines)]
        for row in content["rows"]
    ]
    return f"""### Engines on an H200

The engines of a causal product on an H200: picoseconds per token and channel, forward and backward, of a
bfloat16 signal of {content["batch"]} × {content["length"]:,} tokens and {content["channels"]} channels, as CUDA graphs.

{measured_table(name, ["lags", *engines], rows)}"""


def host() -> str:
    """The host's time for a layer, before and now."""
    name = "host-times-cpu.json"
    content = results(name)["results"]
    rows = [
        [
            row["model"],
            *(f"{row[version]['microseconds']:,.0f}" for version in ("peer", "this")),
            f"{row['this']['microseconds'] / row['peer']['microseconds']:.2f}",
            f"{row['this']['launches']:.0f}",
        ]
        for row in content["rows"]
    ]
    columns = ["model", f"µs, commit {content['peer']}", "µs, now", "ratio", "launches of Triton"]
    return f"""### What the host takes

The host's part of a layer's training step, without a card: the CPU stands for one, tensors are tiny, and Triton's
launches end where the driver would be called (`benchmarks/host_times.py`). A card's driver adds about 5 µs a call. Rows
below {_TRANSFORMER} are other packages' code and show how much a measurement differs from the next.

{measured_table(name, columns, rows)}"""
