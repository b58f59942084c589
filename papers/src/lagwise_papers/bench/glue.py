"""Fine-tune pretrained runs on GLUE tasks with several seeds, and compare simple methods and untrained models."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from lagwise.data import read_labelled
from lagwise.files import expanded, read_json, write_whole
from lagwise.models import LagwiseConfig
from lagwise.progress import progress_bar
from lagwise.runs import evaluate_run
from lagwise.tables import known, shown
from lagwise.tasks import SequenceClassification
from lagwise.tasks.labelled import METRICS
from lagwise.training import Recipe, check_recipe, data_unchanged, load_recipe, load_run, read_metrics, resume, train
from lagwise.training.folder import RECIPE_FILE, RUN_FILE, checkpoints
from lagwise.training.model import own_fields, with_start
from lagwise_papers.bench.text_baselines import majority, tf_idf
from lagwise_papers.data.published import LAYOUTS

RESULT_FILE = "result.json"  # written when a fine-tuning has finished
_DECIDED = ("steps", "least_steps", "warmup_steps", "evaluate_every")  # from epochs and rows
_START_FILE = "start.json"
BASELINES: dict[str, Callable[[Any], dict[str, float]]] = {"majority": majority, "TF-IDF": tf_idf}
Results = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Start:
    """A model to fine-tune: the model of a run, with its weights or, if ``untrained``, with new ones."""

    run: Path
    untrained: bool = False

    @property
    def name(self) -> str:
        return self.run.name + ("-untrained" if self.untrained else "")

    def recipe(self, task: str, data: str, seed: int, overrides: Sequence[str]) -> Recipe:
        """Load the recipe of a task for this model, with absolute paths."""
        init = f"model.init_from={json.dumps(str(self.run))}"
        recipe = load_recipe(f"glue-{task}", [init, *overrides, f"training.seed={seed}"])
        recipe.data.source = f"{data}:{task}" if data.startswith("hub:") else str(expanded(data).resolve())
        recipe = with_start(recipe)
        return dataclasses.replace(recipe, model=own_fields(recipe)) if self.untrained else recipe


def compare_glue(
    runs: Sequence[Path],
    data: str,
    out: Path,
    *,
    tasks: Sequence[str],
    seeds: int = 3,
    untrained: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    progress: bool = True,
    report: Callable[[Results], None] = lambda results: None,
) -> Results:
    """Score every run on every task, fine-tuned by the recipe ``glue-TASK`` with seeds 0, 1, ..., and simple methods on
    the same rows.

    Fine-tunings are run folders ``out/NAME/TASK-SEED``. Finished ones are reused, and interrupted ones are resumed.
    Seeds are the outer loop, so an interrupted comparison covers all tasks with fewer seeds. Several processes may
    share ``out`` if their runs differ.

    Args:
        runs: Folders of encoders.
        data: A folder with GLUE's files (see `lagwise.data.open_glue`) or ``hub:nyu-mll/glue``.
        out: Folder of the fine-tunings.
        tasks: Names of tasks.
        seeds: Number of seeds.
        untrained: Folders of runs whose models are also trained without their weights.
        overrides: Changes to the recipes.
        progress: Whether to show progress bars.
        report: Called with the results after each fine-tuning.

    Returns:
        A dict: ``tasks`` maps each task to its metric and rows; ``scores`` maps each method and task to a list with
        the scores of each seed on test (GLUE's dev set) and valid.

    Raises:
        ValueError: Before the first training, if data, runs or overrides are invalid, or if ``out`` holds other
            fine-tunings.
    """
    for task in tasks:
        known(task, LAYOUTS, "task of GLUE")
    starts = [*map(Start, map(_folder, runs)), *(Start(_folder(run), untrained=True) for run in untrained)]
    names = [start.name for start in starts]
    if not starts or len({*names, *BASELINES}) < len(names) + len(BASELINES):
        raise ValueError(f"runs to compare must be one or more folders with different names, got {names}")
    planned = [
        (start, task, out / start.name / f"{task}-{seed}", start.recipe(task, data, seed, overrides))
        for seed in range(seeds)
        for task in tasks
        for start in starts
    ]
    results: Results = {"tasks": {}, "scores": {name: {task: [] for task in tasks} for name in (*BASELINES, *names)}}
    for _, _, folder, recipe in planned:
        check_recipe(recipe)
        _check_same(recipe, folder)
    for task in tasks:
        _score_baselines(next(recipe for _, name, _, recipe in planned if name == task), task, results)
    for start in starts:
        _check_start(start, out)
    with progress_bar(desc="fine-tuning", total=len(planned), unit="run", show=progress) as bar:
        for start, task, folder, recipe in planned:
            bar.set_postfix_str(f"{start.name}, {folder.name}")
            results["scores"][start.name][task].append(_fine_tuned(recipe, folder, progress))
            bar.update()
            report(results)
    return results


def table_rows(results: Results) -> list[tuple[str, ...]]:
    """Format one row per method: mean and standard deviation over seeds, in percent, on each task and averaged over
    tasks."""
    rows: list[tuple[str, ...]] = []
    for name, scores in results["scores"].items():
        by_task = [[100 * each["test"][results["tasks"][task]["metric"]] for each in scores[task]] for task in scores]
        complete = list(zip(*by_task, strict=False))  # the seeds that all tasks have
        rows.append((name, *map(_mean, by_task), _mean([statistics.fmean(each) for each in complete])))
    return rows


def table_head(results: Results) -> tuple[str, ...]:
    """Make the header for `table_rows`: tasks with their metrics."""
    return ("", *(f"{task} ({METRICS[each['metric']]})" for task, each in results["tasks"].items()), "average")


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def _folder(run: Path) -> Path:
    return expanded(run).resolve()


def _check_start(start: Start, out: Path) -> None:
    """Raise ValueError if the fine-tunings in ``out`` began from other weights under the same name."""
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if (start.run / name).is_file():
            digest.update((start.run / name).read_bytes())
    noted = {"run": str(start.run), "digest": digest.hexdigest()}
    file = out / start.name / _START_FILE
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(noted) + "\n")
    elif read_json(file) != noted:
        raise ValueError(
            f"{str(file.parent)!r} holds fine-tunings of {read_json(file).get('run')!r} with other weights; choose "
            "another folder with --out, or remove them"
        )


def _check_same(recipe: Recipe, folder: Path) -> None:
    """Raise ValueError if a folder holds a fine-tuning with another recipe or other data."""
    if not (folder / RECIPE_FILE).is_file():
        return
    saved, current = (yaml.safe_load(each.to_yaml()) for each in (load_recipe(str(folder / RECIPE_FILE)), recipe))
    saved["model"] = LagwiseConfig().to_dict() | saved["model"]  # options that an earlier version did not have
    for section in ("task", "model", "data", "training"):
        for key, value in current[section].items():
            decided = section == "training" and key in _DECIDED and recipe.training.epochs is not None
            if not decided and saved[section].get(key) != value:
                raise ValueError(
                    f"{str(folder)!r} was fine-tuned with {section}.{key} = {shown(saved[section].get(key))}, not "
                    f"{shown(value)}; choose another folder with --out, or remove it"
                )
    if not data_unchanged(folder, load_run(folder)):
        raise ValueError(f"the data of {str(folder)!r} have changed; choose another folder with --out")


def _score_baselines(recipe: Recipe, task: str, results: Results) -> None:
    classification = check_recipe(recipe)
    assert isinstance(classification, SequenceClassification)
    assert recipe.data.source is not None
    columns, label, kind = classification.columns(), classification.label, classification.kind
    rows = read_labelled(classification.source, columns, label, kind=kind)
    sizes = {split: len(dataset) for split, dataset in rows.splits.items()}
    results["tasks"][task] = {"metric": classification.headline.name, "rows": sizes}
    for name, method in BASELINES.items():
        results["scores"][name][task].append({"test": method(rows)})


def _fine_tuned(recipe: Recipe, folder: Path, progress: bool) -> dict[str, Any]:
    """Train or resume, score, and remove the checkpoints. For a finished fine-tuning, return the saved scores."""
    done = folder / RESULT_FILE
    if done.is_file():
        return read_json(done)
    started = time.perf_counter()
    is_new = not (folder / RECIPE_FILE).is_file()
    if is_new:
        train(recipe, folder, progress=progress)
    else:
        resume(folder, progress=progress)
    seconds = time.perf_counter() - started
    scores, options = evaluate_run(folder, progress=progress), load_recipe(str(folder / RECIPE_FILE)).training
    result = {
        "seed": recipe.training.seed,
        **{split: scores[split] for split in ("test", "valid")},
        "steps": options.steps,
        "best_step": _best_step(folder, recipe.task["metric"]),
        "parameters": read_json(folder / RUN_FILE)["parameters"],
        "seconds": round(seconds, 1) if is_new else None,  # with validation; unknown if resumed
    }
    write_whole(done, json.dumps(result, indent=1) + "\n")
    for checkpoint in checkpoints(folder):
        shutil.rmtree(checkpoint)
    gc.collect()  # models and optimizers are in reference cycles
    return result


def _best_step(folder: Path, metric: str) -> float:
    lines = [line for line in read_metrics(folder) if f"eval_{metric}" in line]
    return max(lines, key=lambda line: (line[f"eval_{metric}"], -line["step"]))["step"]
