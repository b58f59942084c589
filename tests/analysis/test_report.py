"""Reports of runs: their contents, and that pages are self-contained."""

from __future__ import annotations

import io
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lagwise.analysis.report import plot_run, training_command
from lagwise.figures import close, inline_svg
from lagwise.runs import evaluate_run
from lagwise.tasks.figures import confusion_matrix, image_gallery
from lagwise.tasks.labelled import worst_rows
from lagwise.training import load_recipe, train

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
    written = plot_run(run)
    assert [p.name for p in written if p.suffix == ".png"][:2] == ["loss.png", "extrapolation.png"]
    page = Page(written[-1])
    page.check()
    assert page.tags.count("svg") == 4
    assert page.texts["title"] == f"{ODD}: language modelling"
    assert "the model of step 6, the last" in page.texts["summary"]
    assert len(page.texts["a-sample"]) > 100  # the model's text
    assert "gzip" in page.texts["results"]
    assert "best validation bits/byte" in page.texts["summary"]
    assert f"--recipe {shlex.quote(str(run / 'recipe.yaml'))}" in page.texts["reproduce"]
    assert "training:\n  steps: 6" in page.texts["recipe"]
    assert "details" in page.tags
    assert "torch" in page.texts["machine-and-versions"]
    assert [link.removeprefix("#") for link in page.links] == [name for name in page.ids if name in page.texts]


@pytest.mark.slow
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
    worst = worst_rows(logits, labels, ["a", "b"], limit=2)
    assert [(i, each["true"], each["predicted"]) for i, each in worst.items()] == [(1, "a", "b"), (0, "b", "a")]
    assert worst[1]["probability"] == pytest.approx(1 / (1 + np.exp(-3)))
    numbers = worst_rows(np.array([[1.0], [5], [3]]), np.array([1.0, 2, 8]), None, limit=2)
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
    """Dollars are not parsed as mathematics, and markup is escaped."""
    figure = confusion_matrix([[3, 1], [0, 2]], ["<b>$\\x$", "no"])
    svg = inline_svg(figure, "confusion")
    close(figure)
    assert "&lt;b&gt;$\\x$" in svg
    assert svg.startswith("<svg ")
    file = io.BytesIO()
    Image.new("L", (4, 4)).save(file, "PNG")
    figure = image_gallery([file.getvalue()], ["$1_a_b, not $2_a_b"], title="mistakes")
    assert "$1_a_b, not $2_a_b" in inline_svg(figure, "mistakes")
    close(figure)
