"""Reports of single runs and comparisons: their contents, and that pages are self-contained."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lagwise.analysis.recorded import different_settings, training_command
from lagwise.analysis.report import compare_runs, learning_curves, plot_run
from lagwise.cli.main import app
from lagwise.figures import close, inline_svg
from lagwise.runs import evaluate_run
from lagwise.tasks.classification_results import worst_rows
from lagwise.tasks.figures import confusion_matrix, image_gallery
from lagwise.training import load_recipe, read_metrics, train

ODD = 'a_<b> & "c" $d_$'  # a folder's name


class Page(HTMLParser):
    """The parts of a page, with its text by section id."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = [""]
        self.texts: dict[str, str] = {}
        self.section = ""
        self.html = file.read_text()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        if tag == "section":
            self.section = values["id"] or ""
        self.ids += [values["id"] or ""] if "id" in values else []
        self.sources += [values[name] or "" for name in ("src", "xlink:href") if name in values]
        self.links += [values["href"] or ""] if "href" in values else []

    def handle_data(self, data: str) -> None:
        place = self.section or self.tags[-1]
        self.texts[place] = f"{self.texts.get(place, '')} {data}".strip()

    def check(self) -> None:
        """Check that links and references have exactly one target in the page, and that nothing is loaded from the
        network."""
        assert len(set(self.ids)) == len(self.ids)
        assert self.links
        assert {link.removeprefix("#") for link in self.links} <= set(self.ids)
        assert set(re.findall(r"url\(#(\w+)\)", self.html)) <= set(self.ids)
        assert all(s.startswith("data:image/png;base64,") or s.removeprefix("#") in self.ids for s in self.sources)
        assert "http" not in self.html.replace("http-equiv", "")
        assert self.tags.count("svg") == self.tags.count("figure")
        assert "link" not in self.tags
        assert "#000000" not in self.html  # would not be seen on a dark ground


def test_the_report_is_self_contained(tiny_run: Path) -> None:
    run = tiny_run.rename(tiny_run.with_name(ODD))
    evaluate_run(run, [32, 64], progress=False)
    (run / "sample.txt").write_text("if a < b & c:")
    written = plot_run(run)
    assert [p.name for p in written if p.suffix == ".png"][:2] == ["loss.png", "extrapolation.png"]
    page = Page(written[-1])
    page.check()
    assert page.tags.count("svg") == 4
    assert page.texts["title"] == f"{ODD}: language modelling"
    assert "of step 6, the last one" in page.texts["summary"]
    assert "if a < b & c:" in page.texts["a-sample"]
    assert "gzip" in page.texts["results"]
    assert "best validation bits/byte" in page.texts["summary"]
    assert f"--recipe {shlex.quote(str(run / 'recipe.yaml'))}" in page.texts["reproduce"]
    assert "training:\n  steps: 6" in page.texts["recipe"]
    assert "details" in page.tags
    assert "torch" in page.texts["machine-and-versions"]
    assert [link.removeprefix("#") for link in page.links] == [name for name in page.ids if name in page.texts]


def test_the_report_of_a_classifier_shows_rows_that_it_gets_wrong(tmp_path: Path) -> None:
    texts = [f"{word} {i}" for i in range(40) for word in ("alpha", "beta")]
    lines = [f"{text} <b>,{'of each pair ' * 9},{text[0]}\n" for text in texts]
    (tmp_path / "rows.csv").write_text("text,other,label\n" + "".join(lines))
    few = ["training.first_answer=none", "task.wide=false", "training.steps=1", "task.text=[text, other]"]
    few += ["model.hidden_size=8", "model.num_hidden_layers=1", "data.tokenizer=bytes"]
    recipe = load_recipe("classify", [f"data.source={tmp_path / 'rows.csv'}", *few])
    run = train(recipe, tmp_path / "run", progress=False)
    mistakes = evaluate_run(run, progress=False)["mistakes"]
    assert mistakes  # the model is hardly trained
    for each in mistakes:
        number, text = each["row"].split(": ")
        assert number.isdecimal()
        assert text.startswith("alpha" if each["true"] == "a" else "beta")
        first, other = text.split(" | ")
        assert first.endswith("<b>")
        assert other == "of each pair of each pair of each pair of each pair of ..."
        assert each["predicted"] != each["true"]
        assert 0.5 <= each["probability"] <= 1
    page = Page(plot_run(run)[-1])
    assert "Most confident mistakes" in page.texts["results"]
    assert mistakes[0]["row"] in page.texts["results"]


def test_the_worst_rows() -> None:
    logits, labels = np.array([[2.0, 0], [0, 3], [1, 0], [0, 1]]), np.array([1, 0, 1, 1])
    worst = worst_rows(logits, labels, ["a", "b"], most=2)
    assert [(i, each["true"], each["predicted"]) for i, each in worst.items()] == [(1, "a", "b"), (0, "b", "a")]
    assert worst[1]["probability"] == pytest.approx(1 / (1 + np.exp(-3)))
    numbers = worst_rows(np.array([[1.0], [5], [3]]), np.array([1.0, 2, 8]), None, most=2)
    assert numbers == {2: {"true": 8.0, "predicted": 3.0}, 1: {"true": 2.0, "predicted": 5.0}}


class TestCommand:
    @pytest.mark.parametrize("overrides", [[], ["model=mega", "data.source=a file.txt", "training.epsilon=1e-9"]])
    def test_trains_the_runs_own_recipe_again(self, overrides: list[str], tmp_path: Path) -> None:
        run, wanted = tmp_path / ODD, load_recipe("tnn-lm", overrides)
        run.mkdir()
        (run / "recipe.yaml").write_text(wanted.to_yaml())
        words = shlex.split(training_command(run))
        assert words == ["lagwise", "train", "--recipe", str(run / "recipe.yaml"), "--out", f"{run}-again"]
        assert load_recipe(words[3]) == wanted
        assert training_command(run, processes=2).startswith("torchrun --nproc-per-node 2 -m lagwise train --recipe ")
        (run / "tokenizer").mkdir()
        assert f"data.tokenizer={run / 'tokenizer'}" in shlex.split(training_command(run))

    def test_names_a_folder_beside_the_current_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert training_command(Path()).endswith(f" {tmp_path}-again")


def test_plots_escape_special_characters_in_names() -> None:
    """Dollars are not parsed as mathematics, leading underscores do not hide labels, and markup is escaped."""
    figure = confusion_matrix([[3, 1], [0, 2]], ["<b>$\\x$", "no"])
    svg = inline_svg(figure, "confusion")
    close(figure)
    assert "&lt;b&gt;$\\x$" in svg
    assert svg.startswith("<svg ")
    figure = learning_curves({"_$a$": [(1, 2.0), (2, 1.0)], "b": [(1, 3.0), (2, 2.5)]}, "step", "loss")
    svg = inline_svg(figure, "loss")
    assert [line.get_xydata().tolist() for line in figure.axes[0].lines] == [[[1, 2], [2, 1]], [[1, 3], [2, 2.5]]]
    close(figure)
    assert ">_$a$</text>" in svg
    file = io.BytesIO()
    Image.new("L", (4, 4)).save(file, "PNG")
    figure = image_gallery([file.getvalue()], ["$1_a_b, not $2_a_b"], title="mistakes")
    assert "$1_a_b, not $2_a_b" in inline_svg(figure, "mistakes")
    close(figure)
    assert "var(--paper)" in svg  # the ground of the legend


@pytest.fixture(scope="module")
def runs(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("compared")
    few = ["training.batch_size=4", "training.evaluate_every=3", "training.log_every=1", "data.length=32"]
    few += ["model.hidden_size=8", "model.num_hidden_layers=1", "training.evaluate_tokens=512"]
    few += [f"data.source={text_file}", "training.warmup_steps=2"]
    runs = []
    for name, steps, rate in (("one", 3, 0.001), (ODD, 6, 0.002)):
        recipe = load_recipe("tnn-lm", [*few, f"training.steps={steps}", f"training.learning_rate={rate}"])
        runs.append(train(recipe, folder / name, progress=False))
        evaluate_run(runs[-1], [32, 64], progress=False)
    return runs


class TestComparison:
    def test_shows_curves_results_and_what_differs(self, runs: list[Path], tmp_path: Path) -> None:
        *plots, report = compare_runs(runs, tmp_path / "new" / "place")
        assert report == tmp_path / "new" / "place" / "report.html"
        names = ["validation-step", "loss-step", "validation-seconds", "loss-seconds"]
        assert [path.stem for path in plots] == names
        page = Page(report)
        page.check()
        assert page.texts["title"] == f"2 runs: one, {ODD}"
        assert page.tags.count("svg") == 4
        assert "training.learning_rate 0.001 0.002" in page.texts["recipes"]
        assert "training.seed" not in page.texts["recipes"]
        assert page.texts["results"].count(ODD) == 3  # two lengths, and the validation
        assert "gzip all" in page.texts["results"]
        assert page.texts["reproduce"].count("recipe.yaml") == 2
        assert "torch" in page.texts["machine-and-versions"]

    def test_is_written_next_to_the_first_run(self, runs: list[Path]) -> None:
        result = CliRunner().invoke(app, ["plot", *map(str, runs)], catch_exceptions=False)
        assert result.exit_code == 0
        report = runs[0].resolve().parent / "comparison" / "report.html"
        assert str(report) in result.output.replace("\n", "")
        assert report.is_file()

    def test_works_without_evaluation_weights_and_times(self, runs: list[Path], tmp_path: Path) -> None:
        folders = [Path(shutil.copytree(run, tmp_path / place / "run")) for run, place in zip(runs, "ab", strict=True)]
        for name in ("evaluation.json", "config.json", "model.safetensors"):
            (folders[0] / name).unlink(missing_ok=True)
        log = folders[0] / "metrics.jsonl"
        log.write_text(re.sub(r', "seconds": [\d.]+', "", log.read_text()))
        assert not any("seconds" in line for line in read_metrics(folders[0]))
        *plots, report = compare_runs(folders)
        assert [path.stem for path in plots] == ["validation-step", "loss-step"]
        page = Page(report)
        assert "no times in their logs: a/run." in page.texts["learning"]
        assert "Not evaluated yet: a/run" in page.texts["results"]
        evaluation = json.loads((folders[1] / "evaluation.json").read_text())
        (folders[1] / "evaluation.json").write_text(json.dumps({**evaluation, "data": "other.txt"}))
        _, _, report = compare_runs(folders)
        assert "b/run was scored on other data than its own: other.txt." in Page(report).texts["results"]
        (folders[1] / "evaluation.json").write_text(json.dumps({**evaluation, "given": True}))
        _, _, report = compare_runs(folders)
        assert f"on other data than its own: {evaluation['data']}." in Page(report).texts["results"]

    def test_refuses_runs_that_cannot_be_compared(self, runs: list[Path], tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"needs different runs, got .* twice"):
            compare_runs([runs[0], runs[0].parent / "." / runs[0].name])
        with pytest.raises(ValueError, match="out must not be the folder of a run"):
            compare_runs(runs, runs[0])
        with pytest.raises(FileNotFoundError):
            compare_runs([runs[0], tmp_path / "nothing"])
        other = Path(shutil.copytree(runs[0], tmp_path / "other", ignore=shutil.ignore_patterns("evaluation.json")))
        recipe = (other / "recipe.yaml").read_text()
        (other / "recipe.yaml").write_text(recipe.replace("name: language_m", "name: masked_language_m"))
        message = "one task can be compared: 'one' has language_modelling, 'other' has masked_language_modelling"
        with pytest.raises(ValueError, match=message):
            compare_runs([runs[0], other])
        damaged = Path(shutil.copytree(runs[0], tmp_path / "damaged"))
        (damaged / "run.json").write_text("{}")
        with pytest.raises(ValueError, match=r"run\.json.* in '.*damaged' is damaged"):
            compare_runs([runs[1], damaged])
        result = CliRunner().invoke(app, ["plot", str(runs[0]), "--out", str(tmp_path)])
        assert "--out is for several runs" in result.output


def test_settings_that_only_some_recipes_have_are_shown() -> None:
    recipes = {"a": load_recipe("tnn-lm"), "b": load_recipe("tnn-lm", ["model=mega", "data.lengths=[512]"])}
    rows = {key: values for key, *values in different_settings(recipes)}
    assert rows["data.lengths"] == ["null", "[512]"]
    assert rows["model.block.chunk"][0] == "-"
    assert "training.steps" not in rows
