"""Sections about encoders and images."""

from __future__ import annotations

from tables import has_results, measured_table, ratio, results

from lagwise_papers.bench.glue import table_head, table_rows

_DATA = {"cifar": "CIFAR-10", "fashion": "Fashion-MNIST"}


def encoders() -> str:
    name = "encoder-speed-cpu.json"
    content = results(name)["results"]
    ours, theirs = content["parameters"]
    rows = [
        [
            row["dtype"],
            row["batch"],
            f"{row['length']:,}",
            *(f"{row['seconds'][model]['median']:.2f}" for model in (ours, theirs)),
            f"{ratio(row['seconds'][theirs], row['seconds'][ours]):.2f}×",
        ]
        for row in content["rows"]
    ]
    sizes = ", ".join(f"{model} {count / 1e6:.0f}M" for model, count in content["parameters"].items())
    columns = ["precision", "batch", "length", f"{ours}, s", f"{theirs}, s", "ratio"]
    return f"""## Encoders: a forward pass

Random weights, the package's own code for the peer, scaled dot-product attention. Parameters: {sizes}.

{measured_table(name, columns, rows)}"""


def pretraining() -> str:
    name = "encoders-cpu.json"
    runs = results(name)["results"]
    lengths = [score["length"] for score in next(iter(runs.values()))["test"]]
    rows = [
        [
            recipe,
            f"{run['machine']['parameters'] / 1e6:.2f}M",
            f"{run['steps']:,}",
            *(f"{score['loss']:.3f}" for score in run["test"]),
            f"{100 * run['test'][0]['accuracy']:.1f} %",
        ]
        for recipe, run in sorted(runs.items(), key=lambda item: item[1]["test"][0]["loss"])
    ]
    columns = ["recipe", "parameters", "steps", *(f"loss at {length:,}" for length in lengths), "hidden tokens found"]
    return f"""## Encoders: pretraining

The recipes NAME-mlm for the same time each, about an hour on one thread, one seed, on novels and WikiText-2 (BPE of
8,192 tokens, batches of 16, sequences of 128 to 512 tokens, learning rate 0.001 for all). The steps of all models were
timed in turn. Losses are nats for each hidden token of the test texts, the same tokens at every length. SKI-TNN had 64
nodes at every length here, as published; with `spacing` it extrapolates.

{measured_table(name, columns, rows)}

![Validation loss over time](figures/encoders.png)"""


def glue() -> str:
    name = "glue-cpu.json"
    if not has_results(name):
        return ""
    content = results(name)["results"]
    return f"""## Encoders: GLUE

The models pretrained above, fine-tuned by the recipes glue-TASK with three seeds
([GLUE](../papers/docs/glue.md)): mean and standard
deviation on the dev sets, in percent. The last row trains TNN without its pretraining. TF-IDF is a linear model of
words and pairs of words.

{measured_table(name, table_head(content), table_rows(content))}"""


def image_classifiers() -> str:
    """Of the results file of `benchmarks/pictures.py`, once there is one."""
    name = "pictures-cpu.json"
    if not has_results(name):
        return ""
    runs = results(name)["results"].items()
    rows = [
        [
            run,
            _DATA[each["data"]],
            f"{each['machine']['parameters'] / 1e6:.2f}M",
            f"{each['steps']:,}",
            f"{each['seconds'] / 60:.0f}",
            f"{each['pictures_per_second']:.0f}",
            *(f"{100 * score['accuracy']:.2f} %" for score in (each["scores"]["test"], *each["scores"]["sizes"][1:])),
        ]
        for run, each in sorted(runs, key=lambda item: (item[1]["data"], -item[1]["scores"]["test"]["accuracy"]))
    ]
    columns = ["run", "data", "parameters", "steps", "minutes", "images/s", "test accuracy"]
    columns += ["at 48 x 48", "at 64 x 64"]
    rows = [row + [""] * (len(columns) - len(row)) for row in rows]
    return f"""## Images: training

The recipe tnn-cifar (tnn-2d), TNN over the sequence of patches (tnn), and a vision transformer (vit), all with the same
augmentation and one seed. Each has the number of steps that fits into an hour of one thread, by the CPU time of some
steps, with `--cifar img/cifar10.npz --minutes 60`. On Fashion-MNIST the recipe had an hour and a half, batches of 64
and no cropping. Minutes and images per second are by the clock, beside other work, and include augmentation and
validation. The last columns are for test images enlarged beyond the trained size.

{measured_table(name, columns, rows)}

![Validation accuracy over time](figures/pictures.png)"""
