"""The section about speed and memory on the shapes of Long Range Arena's tasks."""

from __future__ import annotations

from typing import Any, NamedTuple

import tables

_NAME = "lra-cpu.json"
_BASE = "transformer"
_FIGURE_1A = [(model, measure) for model in ("ski-tnn", "fd-tnn") for measure in ("step", "memory")]
_WORDS = {"forward": "forward passes", "step": "training steps", "memory": "memory"}
_TABLE_2 = {
    "listops": "1.05",
    "text": "1.25",
    "retrieval": "1.18",
    "image": "1.24",
    "pathfinder": "1.25",
    "path-x": "1.73",
}


class _Speeds(NamedTuple):
    """Rows of `lagwise bench lra` by task and model."""

    by_task: dict[tuple[str, str], dict[str, Any]]
    tasks: list[str]

    def row(self, measure: str, model: str, other: str) -> list[str]:
        """For each task, how many times as fast a model is as another, or how much of its memory it takes."""
        return [self._cell(measure, model, other, task) for task in self.tasks]

    def _cell(self, measure: str, model: str, other: str, task: str) -> str:
        if (task, model) not in self.by_task:  # a model of images
            return "-"
        own, base = self.by_task[task, model][measure], self.by_task[task, other][measure]
        return f"{own / base if measure == 'memory' else tables.ratio(base, own):.2f}"


def speeds() -> str:
    """Every model beside the Transformer, and the papers' own comparisons, or nothing before there are results."""
    if not tables.has_results(_NAME):
        return ""
    rows = tables.results(_NAME)["results"]
    tasks, models = (list(dict.fromkeys(row[key] for row in rows)) for key in ("task", "model"))
    speeds = _Speeds({(row["task"], row["model"]): row for row in rows}, tasks)
    parts = [_INTRODUCTION]
    for measure in ("step", "memory"):
        beside = [[model, *speeds.row(measure, model, _BASE)] for model in models]
        parts.append(tables.table([_WORDS[measure], *tasks], beside))
    papers = [[f"{model} over tnn: {_WORDS[m]}", *speeds.row(m, model, "tnn")] for model, m in _FIGURE_1A]
    papers.append([f"tcnca over mega: {_WORDS['forward']}", *speeds.row("forward", "tcnca", "mega")])
    papers.append(["- as published", *(_TABLE_2.get(task, "-") for task in tasks)])
    return "\n\n".join([*parts, _PAPERS, tables.measured_table(_NAME, ["", *tasks], papers)])


_INTRODUCTION = """### Speed on Long Range Arena's shapes

All models have two layers of 64, as the Transformer of TNN's tables 4 and 5; rows are as long as the task allows.
Figures are relative to the Transformer: steps per second (more is better), and the memory of a training step (less is
better)."""

_PAPERS = """Two comparisons of the papers: figure 1a of SKI-TNN (over TNN), and the last row of TCNCA's table 2 (over
MEGA with attention in chunks; published for larger models, on a V100)."""
