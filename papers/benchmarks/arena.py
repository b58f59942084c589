"""Train models on Long Range Arena's tasks for equal times, with one thread per run, and test the best checkpoints.

    python papers/benchmarks/arena.py RUNS --text IMDB --pictures CIFAR.npz [--pairs PAIRS] [--minutes N] [--workers 2]
        [--runs text-tnn,listops-tnn,...] [--results FILE]

Runs are the recipes ``lra-TASK-small`` with the overrides of `PLAN`. FD-TNN and SKI-TNN replace the kernel of the
recipe's TNN. TCN-MLP and the Transformer have a width for about as many parameters, without embeddings of n-grams.
Some runs have a learning rate of their own. The number of steps is what fits into the minutes of the task (`MINUTES`),
or those of --minutes for any task. It is estimated once from the mean CPU time of some steps on the task's data and
kept in RUNS/costs.json. Finished runs are skipped and interrupted runs are resumed, so the command may be stopped and
repeated. The scores and the curve of each finished run are written to the results file.

Two runs take no minutes: ``path-x-tnn-2d`` trains 50 steps of Path-X and measures the memory of the process, and
``retrieval-bytes`` is a logistic regression on the frequencies of bytes of both texts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lagwise.data import read_labelled
from lagwise.tables import known
from lagwise.training import load_recipe, read_metrics, resume, train
from lagwise_papers.bench.harness import in_new_process, process_bytes
from lagwise_papers.bench.run_queue import finish, keep, planned, scores, together
from lagwise_papers.bench.text_baselines import bag_of_bytes
from lagwise_papers.data.published import ARENA

_MIXER = "model.block.token_mixer"


def _ski(taps: int) -> list[str]:
    """The kernel of SKI-TNN with r = 64 nodes, as published, its values at 64 knots, and so many free taps."""
    kernel = f"{_MIXER}.kernel={{name: warped, points: 32, filter_size: {taps}}}"
    return [kernel, f"{_MIXER}.engine={{name: ski, rank: 64}}"]


def _fd(layers: int, hidden: int, longest: int) -> list[str]:
    """The kernel of FD-TNN, with its longest lag."""
    return [f"{_MIXER}.kernel={{name: frequency, layers: {layers}, hidden: {hidden}, grid: {longest}}}"]


PLAN: dict[str, tuple[str, list[str]]] = {
    "text-tnn": ("lra-text-small", []),
    "text-tcn-mlp": ("lra-text-small", ["model=tcn-mlp", "model.hidden_size=92", "training.learning_rate=0.002"]),
    "text-transformer": (
        "lra-text-small",
        ["model=transformer", "model.block.channel_mixer.expansion=3", "training.learning_rate=0.002"],
    ),
    "text-fd-tnn": ("lra-text-small", _fd(1, 16, 512)),
    "text-ski-tnn": ("lra-text-small", _ski(32)),
    "listops-tnn": ("lra-listops-small", []),
    "listops-tcn-mlp": ("lra-listops-small", ["model=tcn-mlp", "model.hidden_size=80"]),
    "listops-fd-tnn": ("lra-listops-small", [*_fd(2, 32, 2048), "training.learning_rate=0.005"]),
    "image-tnn-2d": ("lra-image-small", []),
    # pixels as one sequence; the free taps reach the pixels above and below, 32 tokens away
    "image-ski-tnn": ("lra-image-small", [f"{_MIXER}.name=gtu", *_ski(67)]),
    "pathfinder-tcn-mlp-2d": ("lra-pathfinder-small", []),
    "retrieval-tnn": ("lra-retrieval-small", []),
}
PATH_X, BYTES = "path-x-tnn-2d", "retrieval-bytes"
_PATH_X = (
    "lra-path-x",
    [
        *("data.source=lra-path-x:1000", "training.batch_size=4", "training.accumulate=4", "training.log_every=5"),
        *("training.steps=50", "training.warmup_steps=5", "training.evaluate_every=50", "training.save_every=25"),
    ],
)
MINUTES = {"text": 20, "listops": 60, "image": 60, "image-ski-tnn": 75, "pathfinder": 75, "retrieval": 30}
_EVALUATIONS = {"pathfinder": 9, "retrieval": 3, "text-transformer": 2}  # where one takes minutes
_MAX_EVALUATIONS = 12


def task_of(name: str) -> str:
    """The task of a run: the first word of its name."""
    return name.partition("-")[0]


def evaluations(name: str) -> int:
    """The number of evaluations of a run."""
    return _of_run(_EVALUATIONS, name, _MAX_EVALUATIONS)


def _of_run(values: dict[str, int], name: str, otherwise: int = 0) -> int:
    """The value for a run, or else for its task."""
    return values.get(name, values.get(task_of(name), otherwise))


def arguments(name: str, job: tuple[str, Sequence[str]], steps: int) -> list[str]:
    """The arguments of ``lagwise train`` for a run."""
    recipe, overrides = job
    return [
        *("--recipe", recipe, *overrides),
        *(f"training.steps={steps}", f"training.warmup_steps={max(1, steps // 20)}"),
        f"training.evaluate_every={-(-steps // evaluations(name))}",  # the last step is evaluated in any case
        f"training.save_every={-(-steps // _MAX_EVALUATIONS)}",
    ]


def run(name: str, job: tuple[str, list[str]], plan: dict[str, Any], args: argparse.Namespace) -> None:
    """Train, evaluate, and write the results."""
    folder, steps = args.folder / name, plan["steps"]
    done, run_scores = finish(folder, arguments(name, job, steps)), scores(folder)
    result = {
        **plan,
        **_training(folder, *job),
        "machine": done["machine"],
        "curve": [(m["step"], m["eval_loss"], m["eval_accuracy"]) for m in done["evaluations"]],
        "scores": {split: run_scores[split] for split in ("valid", "test")},
    }
    keep(args.results, name, result)
    print(f"{name}: {steps} steps, test accuracy {run_scores['test']['accuracy']:.4f}", flush=True)


def _training(folder: Path, recipe: str, overrides: list[str]) -> dict[str, Any]:
    """Collect the size of a run's model, how it was trained, and its training losses by step. Seconds include
    validation, but no pauses."""
    saved, lines = load_recipe(str(folder / "recipe.yaml")), read_metrics(folder)
    options = saved.training
    return {
        "recipe": recipe,
        "overrides": overrides,
        "layers": saved.model["num_hidden_layers"],
        "width": saved.model["hidden_size"],
        "seed": options.seed,
        "rows_seen": options.steps * options.batch_size,
        "elapsed_seconds": max(line["seconds"] for line in lines),
        "losses": [(line["step"], line["loss"]) for line in lines if "loss" in line],
    }


def path_x(args: argparse.Namespace) -> None:
    """Train 50 steps of Path-X in a process of their own, and measure the peak of its memory."""
    folder = args.folder / PATH_X
    memory = folder.with_name(f"{PATH_X}.memory")
    if not memory.is_file():
        in_new_process(_train_and_measure, *_PATH_X, folder, memory)
    peak = int(memory.read_text())
    result = _training(folder, *_PATH_X)
    keep(args.results, PATH_X, {**result, "machine": json.loads((folder / "run.json").read_text()), "memory": peak})
    print(f"{PATH_X}: {peak / 2**20:,.0f} MB, losses {[loss for _, loss in result['losses']]}", flush=True)


def _train_and_measure(recipe: str, overrides: list[str], folder: Path, memory: Path) -> None:
    """Write the largest memory of this process in bytes after a training, or the rest of an interrupted one."""
    import torch

    torch.set_num_threads(1)
    if (folder / "recipe.yaml").is_file():
        resume(folder)
    else:
        train(load_recipe(recipe, overrides), folder)
    memory.write_text(str(process_bytes("VmHWM")))


def bytes_baseline(args: argparse.Namespace) -> None:
    """Score `bag_of_bytes` on the pairs."""
    rows = read_labelled(ARENA["aan"].open(args.pairs), ("text1", "text2"), "label")
    score = bag_of_bytes(rows)
    keep(args.results, BYTES, {"rows_seen": len(rows.splits["train"]), "scores": {"test": score}})
    print(f"{BYTES}: test accuracy {score['accuracy']:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder for the runs")
    parser.add_argument("--text", help="labelled reviews")
    parser.add_argument("--pictures", help="labelled images of 32 x 32 pixels")
    parser.add_argument("--pairs", help="pairs of passages, as 'lagwise data lra-retrieval' writes them")
    parser.add_argument("--runs", default=",".join([*PLAN, PATH_X, BYTES]), help="names, separated by commas (all)")
    parser.add_argument("--minutes", type=float, help="minutes per run, instead of those of its task")
    parser.add_argument("--workers", type=int, default=2, help="concurrent runs (2)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/arena-cpu.json"))
    args = parser.parse_args()
    options = {"text": "text", "image": "pictures", "retrieval": "pairs"}
    jobs, other_runs = {}, []
    for name in args.runs.split(","):
        known(name, [*PLAN, PATH_X, BYTES], "run")
        option = options.get(task_of(name))
        source = option and getattr(args, option)
        if option and not source:
            print(f"{name}: skipped, because its data are not given (--{option})", file=sys.stderr)
        elif name in PLAN:
            recipe, overrides = PLAN[name]
            jobs[name] = (recipe, [*overrides, *([f"data.source={json.dumps(source)}"] if source else [])])
        else:
            other_runs.append({PATH_X: path_x, BYTES: bytes_baseline}[name])
    args.folder.mkdir(parents=True, exist_ok=True)
    minutes = {name: _of_run(MINUTES, name) if args.minutes is None else args.minutes for name in jobs}
    plan = planned(jobs, minutes, args.folder / "costs.json", {name: evaluations(name) for name in jobs})
    runs = [partial(run, name, job, plan[name], args) for name, job in jobs.items()]
    together(args.workers, [*runs, *(partial(other, args) for other in other_runs)])


if __name__ == "__main__":
    main()
