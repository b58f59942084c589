"""Sections about operators, layers and blocks."""

from __future__ import annotations

import itertools

from tables import has_results, measured_table, mebibytes, ratio, results


def toeplitz() -> str:
    plain, raised = "toeplitz-cpu-default-allocator.json", "toeplitz-cpu.json"
    rows = []
    for default, tuned in zip(results(plain)["results"]["layers"], results(raised)["results"]["layers"], strict=True):
        speed = [f"{ratio(r['seconds']['literal'], r['seconds']['lagwise']):.1f}×" for r in (default, tuned)]
        memory = [mebibytes(tuned["memory"][name]) for name in ("lagwise", "literal")]
        rows.append([default["length"], *speed, *memory])
    return f"""## The causal Toeplitz layer

Forward and backward of one layer with the kernel network of TNN (512 channels, 8,192 tokens per batch), against the
published algorithm written out literally. The literal algorithm spends much of its time on page faults, which raised
thresholds of glibc's allocator avoid (`LAGWISE_KEEP_MEMORY`); both cases are shown.

{measured_table(raised, ["length", "speed-up", "with raised thresholds", "lagwise, MiB", "literal, MiB"], rows)}

The first column is from `{plain}`: `{results(plain)["command"]}`. `--peer module:factory` times any other
implementation beside these."""


def kernels() -> str:
    name = "ops-cpu.json"
    by_case = {(row["causal"], row["length"]): row for row in results(name)["results"]["rows"]}

    def gain(causal: bool, length: int, slow: str, fast: str) -> str:
        step = by_case[causal, length]["step"]
        return f"{ratio(step[slow], step[fast]):.1f}×"

    rows = []
    for length in sorted({length for _, length in by_case}):
        memory = by_case[False, length]["memory"]
        rows.append(
            [
                length,
                gain(True, length, "tnn λ=1", "tnn λ=1 ski"),
                gain(False, length, "tnn", "ski-tnn"),
                gain(False, length, "literal tnn", "ski-tnn"),
                ", ".join(mebibytes(memory[method]) for method in ("ski-tnn", "tnn", "literal tnn")),
                f"{gain(True, length, 'tnn', 'fd-tnn 256')}, {gain(False, length, 'tnn', 'fd-tnn 256')}",
            ]
        )
    columns = ["length", "causal SKI over the FFT", "two-sided SKI-TNN over our TNN", "over TNN as published"]
    columns += ["MiB: SKI-TNN, TNN, as published", "FD-TNN of 256 frequencies over our TNN: causal, two-sided"]
    return f"""## TNN, SKI-TNN and FD-TNN: one layer

Training step of one layer (512 channels, at least 8,192 tokens per batch). Causal SKI stands for TNN's kernel without
decay and is within 2e-3 of it; its error can be chosen.

{measured_table(name, columns, rows)}

TNN's decay of 0.99 ends its kernel after 1,833 lags. Overlap-save then makes TNN linear in the length too: against it,
causal SKI-TNN is 2.6 times as fast at 8,192 tokens and at 32,768.

![Time of a training step over the length](../benchmarks/results/ops-cpu.png)"""


def memories() -> str:
    name = "ema-vs-tcn-cpu.json"
    rows = []
    for row in results(name)["results"]["causal"]:
        cells = []
        for slow, fast in itertools.product(("mega ema", "ema by fft"), ("tcn", "ema by scan")):
            forward = ratio(row["forward"][slow], row["forward"][fast])
            backward = [row["step"][m]["median"] - row["forward"][m]["median"] for m in (slow, fast)]
            cells.append(f"{forward:.1f}×, {backward[0] / backward[1]:.1f}×")
        rows.append([row["length"], *cells])
    columns = ["length", "TCN over MEGA's FFT", "our scan over MEGA's FFT", "TCN over our FFT", "our scan over our FFT"]
    return f"""## MEGA's moving average and TCNCA's convolutions

One sequence of 64 channels through a moving average and through a stack of dilated convolutions with as many
parameters: speed-up of the second over the first, forward and backward. The paper's figures for the first column end at
7.07 and 2.86 on a V100. With the parallel scan that the paper leaves open, MEGA's memory is the faster of the two at
131,072 tokens.

{measured_table(name, columns, rows)}

![Time over the length](../benchmarks/results/ema-vs-tcn-cpu.png)"""


def compiled_training() -> str:
    name = "compile-cpu.json"
    if not has_results(name):
        return ""
    content = results(name)["results"]
    rows = [
        [
            row["recipe"],
            row["rows"],
            row["graphs"],
            *(f"{spent['clock']:.0f} ({spent['cpu']:.0f})" for spent in row["compile_seconds"]),
            f"{row['loss']:.0e}",
            f"{row['gradients']:.0e}",
            f"{row['compiled']['median'] / row['eager']['median']:.2f}",
        ]
        for row in content["rows"]
    ]
    seconds = [f"s (CPU), {length} tokens" for length in content["lengths"]]
    columns = ["recipe", "rows", "graphs", *seconds, "loss", "gradients", "step over eager"]
    lengths, once = ", ".join(map(str, content["lengths"])), content["once"]
    return f"""## Training steps through torch.compile

Models of {content["layers"]} layers with the recipe's width, {content["batch"]} rows of bytes, lengths {lengths}, as
`training.compile=true` compiles them: layers share a graph for the first length, and one for all others. Packed rows
have texts of 50 tokens on average, cut anew for each length: every mixer takes them in three groups, which are compiled
each. Seconds are by the clock, in brackets those of the CPUs; those of the C++ compiler and of two steps are included.
Losses and gradients differ from the model's own by the given shares of their largest. The last column is the time of a
step over that of the model itself, at the first length: on a CPU, there is little to gain.

The C++ compiler runs once for each kernel, on all cores; loading PyTorch's headers and linking to its libraries are
about two thirds of its time. Processors differ: on an older one everything took twice as long. What a model of more
layers costs is its steps only. A length that is a symbol costs Python more than one that is a number, most of all
where chunks of attention are cut. PyTorch prepares its headers and a check of vector instructions once a machine, which
took {once["clock"]:.0f} seconds and is not in the table.

{measured_table(name, columns, rows)}"""
