"""Sections about streaming and conversion."""

from __future__ import annotations

from tables import measured_table, results


def streaming() -> str:
    name = "generate-cpu.json"
    lengths = (1024, 16384, 131072)
    sections = []
    for kind, title in (("layers", "one layer of 256 channels"), ("models", "the small models of the recipes")):
        one = {(r["method"], r["length"]): r for r in results(name)["results"][kind] if r["batch"] == 1}
        rows = []
        for method in dict.fromkeys(method for method, _ in one):
            speeds = [1 / one[method, n]["token"]["median"] for n in lengths]
            over = [
                speeds[1] * one[peer, lengths[1]]["token"]["median"]
                for peer in ("recompute", "ring buffer", "attention")
            ]
            state_mebibytes = one[method, lengths[2]]["memory"] / 2**20
            cells = [*(f"{v:,.0f}" if v >= 10 else f"{v:.1f}" for v in speeds), *(f"{ratio:.1f}×" for ratio in over)]
            rows.append([method, *cells, f"{state_mebibytes:,.1f}" if state_mebibytes else "none"])
        columns = ["method", *(f"{n:,}" for n in lengths), "at 16,384 over recomputing", "at 16,384 over a ring buffer"]
        columns += ["at 16,384 over attention's cache", "state at 131,072, MiB"]
        sections.append(f"Tokens per second of {title}:\n\n{measured_table(name, columns, rows)}")
    return """## Streaming

Tokens per second of one sequence after contexts of 1,024 to 131,072 tokens. Each method is first checked to give the
outputs of the full forward pass. `TNN without decay` remembers every token; `ring buffer` is a dot product over all of
them; `recompute` a forward pass over the whole context; `n states` the conversion to one state a tap; `attention` a
Transformer with a key-value cache.

{}

![Milliseconds per token over the context](../benchmarks/results/generate-cpu.png)""".format("\n\n".join(sections))


def conversion() -> str:
    name = "conversion-cpu.json"
    rows = []
    for row in results(name)["results"]["rows"]:
        median, largest = (max(layer["order"][i] for layer in row["layers"]) for i in (1, 2))
        error, bound = (max(layer[key] for layer in row["layers"]) for key in ("error", "bound"))
        score, speed = row["bits_per_byte"][0], row["tokens_per_second"]
        sizes = ", ".join(f"{row[key] / 2**20:.1f}" for key in ("state", "n_states_state", "converted_state"))
        cells = [row["run"], f"{row['tolerance']:g}", row["taps"], f"{median}, {largest}", f"{error:.1e}, {bound:.1e}"]
        cells += [f"{score['before']:.4f}", f"{score['after'] - score['before']:+.1e}", sizes]
        rows.append([*cells, f"{speed['after'] / speed['n states']:.1f}×"])
    columns = ["model", "tolerance", "taps", "states: median, most", "error, bound", "bits/byte", "change"]
    columns += ["state in MiB: exact, n states, converted", "speed over n states"]
    return f"""## Conversion to state spaces

Small models trained on 3.9 million bytes of enwik8, before and after `lagwise convert`. The error is the largest over
frequencies and lags, relative to a channel's gain; the bound is that of the Hankel singular values left out.

{measured_table(name, columns, rows)}

{_long()}"""


def _long() -> str:
    name = "long-runs-cpu.json"
    units = {"train": "steps", "stream": "tokens", "sessions": "sessions", "serve": "requests"}
    rows = []
    for job, result in results(name)["results"].items():
        samples = result["rows"]
        memory = [sample["memory"] / 2**20 for sample in samples]
        amount = f"{samples[-1]['amount']:,} {units[job]}"
        memory = [f"{memory[i]:.0f}" for i in (0, len(memory) // 2, -1)]
        files = max(sample["files"] for sample in samples)
        rows.append([job, amount, *memory, files])
    columns = ["work", "amount", "MiB at first", "half way", "at the end", "open files at most"]
    return f"""Memory and open files of a process, in long training, eight streams of a converted model, sessions that
are opened and closed, and a server one in ten of whose clients leaves early. The server's memory grows until about
8,000 requests; of 6.9 MiB that it grew over as many in another measurement, 5.9 were free blocks of the allocator and
1.0 was in use:

{measured_table(name, columns, rows)}

![Memory and open files of long work](../benchmarks/results/long-runs-cpu.png)"""


def long_inputs() -> str:
    name = "long-inputs-cpu.json"
    rows = []
    for recipe, lengths in results(name)["results"].items():
        for length, row in lengths.items():
            cells = [_cost(row[way]) for way in ("whole", "pieces", "step", "checkpointed")]
            rows.append([recipe, f"{int(length):,}", *cells, f"{row['whole']['difference']:.0e}".replace("0e+00", "0")])
    columns = ["recipe", "tokens", "forward", "in pieces", "training step", "with checkpointing", "pieces off by"]
    return f"""## Long texts

CPU seconds and MiB beyond the model, of one text with hidden size 64 and two layers in float32 (best-lm: its four
blocks). Without attention over the whole text, eight times the tokens take 5 to 8 times the memory of a forward pass or
a training step and 8 to 13 times the time. Attention over the whole text needs memory that is linear and time that
grows with the square, so it is measured at other lengths. Pieces are of 65,536 tokens with a cache. Eight times the
text needs at most 1.5 times the memory in pieces, except for attention, whose cache has all tokens. The last logits are
compared, relative to the largest. Steps without figures needed more memory than was free on a shared machine of 23 GB.
Gradient checkpointing keeps the input of every block; with two blocks the one that is computed again takes most of the
memory.

{measured_table(name, columns, rows)}"""


def _cost(measured: dict[str, float] | None) -> str:
    return "" if measured is None else f"{measured['seconds']:.1f} s, {measured['memory'] / 2**20:,.0f}"
