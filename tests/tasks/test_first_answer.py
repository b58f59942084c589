"""First answers: every task of labelled rows has one, and a run keeps it unless the trained model is better."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from every_task import CASES, recipe
from scipy.sparse import csr_matrix
from typer.testing import CliRunner

from lagwise.analysis.report import plot_run, training_facts
from lagwise.cli.main import app
from lagwise.models import load_model
from lagwise.runs import evaluate_run, predict_run
from lagwise.tasks import TASKS, Metric
from lagwise.training import LagClassifier, load_recipe, make_task, read_metrics, resume, train
from lagwise.training.first_answer import FILE, is_better, read_first_answer
from lagwise.training.linear_fits import fit_linear

_OF_ROWS = ("sequence_classification", "image_classification", "dna_classification")
LABELLED = [name for name, case in CASES.items() if case.task in _OF_ROWS]


def test_tasks_of_rows_and_images_have_a_first_answer_and_others_say_that_they_have_none(tmp_path: Path) -> None:
    for name in CASES:
        wanted = recipe(name, tmp_path / name, "training.first_answer=only")
        if name in LABELLED:
            assert make_task(wanted).linear_head is not None
            continue
        with pytest.raises(ValueError, match="has no first answer"):
            train(wanted, tmp_path / "run", progress=False)
    assert {case.task for case in CASES.values()} == set(TASKS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LABELLED)
def test_a_first_answer_evaluates_predicts_and_reports_like_any_run(name: str, tmp_path: Path) -> None:
    run = train(recipe(name, tmp_path / "data", "training.first_answer=only"), tmp_path / "run", progress=False)
    about = read_first_answer(run)
    assert about is not None
    assert about["kept"]
    result = evaluate_run(run, baseline=True, progress=False)
    assert "valid" not in result  # it is fitted to these rows too
    assert set(result["baselines"]) == {"first answer", *result["baselines"].keys() - {"first answer"}}
    own = {key: value for key, value in result["test"].items() if key != "rows"}
    assert own == pytest.approx({key: result["baselines"]["first answer"][key] for key in own})
    predicted = predict_run(run, CASES[name].rows, progress=False)
    assert all("predicted" in row for row in predicted)
    assert "first answer" in plot_run(run)[-1].read_text()
    assert not [path for path in run.rglob("*") if path.suffix in (".bin", ".pt", ".pkl")]


def facts_of(run: Path) -> dict[str, str]:
    own = load_recipe(str(run / "recipe.yaml"))
    return training_facts(run, own, make_task(own), read_metrics(run))


def words(tmp_path: Path, *overrides: str, wrong: bool = True) -> Path:
    """A run on texts, every third of them with a wrong label."""
    wanted = recipe("classes of text", tmp_path / "data", *overrides)
    lines = (tmp_path / "data" / "rows.csv").read_text().splitlines()
    other = {"yes": "no", "no": "yes"}
    for i in range(1, len(lines), 3) if wrong else ():
        text, label = lines[i].rsplit(",", 1)
        lines[i] = f"{text},{other[label]}"
    (tmp_path / "data" / "rows.csv").write_text("\n".join(lines) + "\n")
    return train(wanted, tmp_path / "run", progress=True)


def test_the_better_model_is_kept_and_a_sentence_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = words(tmp_path, "training.first_answer=compare", "task.wide=false")
    said = capsys.readouterr().err
    assert "first answer (ngrams" in said
    assert "kept the first answer: on 6 held-out rows the trained model is not clearly better" in said
    assert type(load_model(run)[0]).__name__ == "LagwiseLinearForSequenceClassification"
    about = json.loads((run / FILE).read_text())
    assert about["kept"]
    assert about["trained"].keys() == about["scores"].keys()
    assert [line["first_answer"] for line in read_metrics(run) if "first_answer" in line] == [
        about["scores"]["accuracy"]
    ]
    reported = CliRunner().invoke(app, ["train", "--resume", str(run)], catch_exceptions=False).output
    assert f"with the first answer: validation accuracy {about['scores']['accuracy']:.4f}" in reported
    assert facts_of(run)["model"] == "the first answer"


def test_reports_name_a_model_of_both_and_its_score(tmp_path: Path) -> None:
    run = words(tmp_path, "training.first_answer=none", "task.wide=true")
    about = json.loads((run / FILE).read_text())
    score = f"{about['trained']['accuracy']:.4f}"
    reported = CliRunner().invoke(app, ["train", "--resume", str(run)], catch_exceptions=False).output
    both = f"the first answer and the trained layers (a share of {about['share']:.2f})"
    assert f"with {both}: validation accuracy {score}" in reported
    facts = facts_of(run)
    assert (facts["model"], facts["its validation accuracy"]) == (both, score)


def test_nothing_is_trained_that_could_not_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = words(tmp_path, "training.first_answer=compare", wrong=False)
    assert "no trained model can be better on these rows, so none is trained" in capsys.readouterr().err
    assert [line["eval_accuracy"] for line in read_metrics(run)] == [1.0]
    (run / "config.json").unlink()
    assert resume(run, progress=False) == run
    assert predict_run(run, [{"text": "good good"}], progress=False)[0]["predicted"] == "yes"
    *figures, page = plot_run(run)
    assert "first answer" in page.read_text()
    assert "learning.png" not in [figure.name for figure in figures]  # there is none


@pytest.mark.parametrize("own", ["task.wide=false", "training.first_answer=none"])
def test_a_resumed_run_keeps_its_first_answer_and_decides_the_same(tmp_path: Path, own: str) -> None:
    run = words(tmp_path, "training.first_answer=compare", own)
    before = (run / "model.safetensors").read_bytes()
    (run / "config.json").unlink()
    first = (run / "first" / "model.safetensors").stat().st_mtime_ns
    assert resume(run, progress=False) == run
    assert (run / "model.safetensors").read_bytes() == before
    assert (run / "first" / "model.safetensors").stat().st_mtime_ns == first


def test_words_of_models_choose_what_is_trained() -> None:
    def chosen(*overrides: str) -> str:
        return load_recipe("classify", overrides).training.first_answer

    assert chosen() == "compare"
    assert chosen("model=linear") == "only"
    assert chosen("model=tnn") == "none"
    assert chosen("model=tnn", "training.first_answer=compare") == "compare"
    assert load_recipe("tnn-lm").training.first_answer == "none"
    with pytest.raises(ValueError, match=r"training\.first_answer"):
        load_recipe("classify", ["training.first_answer=yes"])


class Accuracy:
    headline = Metric("accuracy", "accuracy")

    @staticmethod
    def metrics(loss: float, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        return {"accuracy": float((predictions == labels).mean())}


def test_a_difference_of_a_row_is_not_taken_for_a_better_model() -> None:
    labels = np.zeros(20, dtype=int)
    one, other = labels.copy(), labels.copy()
    other[0] = 1
    assert not is_better(Accuracy, one, other, labels)  # type: ignore[arg-type]
    other[:6] = 1
    assert is_better(Accuracy, one, other, labels)  # type: ignore[arg-type]
    assert not is_better(Accuracy, other, one, labels)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [60, pytest.param(2600, marks=pytest.mark.slow)])
def test_ridge_predicts_classes_and_numbers(rows: int) -> None:
    random = np.random.default_rng(0)
    size = 40 if rows < 1000 else 2600
    x = random.normal(size=(rows + 300, size)).astype(np.float32)
    x[:, 3] = 1
    labels = random.integers(0, 3, len(x))
    x[np.arange(len(x)), labels] += 5
    fit = fit_linear(x[:rows], labels[:rows], (x[rows:], labels[rows:]), None)
    assert fit.weights.shape == (3, size)
    assert fit.held_out.shape == (300, 3)
    assert (fit.held_out.argmax(1) == labels[rows:]).mean() > 0.8
    numbers = (5 + 100 * x[:, 4:8].sum(1) + random.normal(size=len(x))).astype(np.float32)
    fit = fit_linear(x[:rows], numbers[:rows], (x[rows:], numbers[rows:]), None)
    assert np.corrcoef(x @ fit.weights[0] + fit.biases[0], numbers)[0, 1] > 0.8


@pytest.mark.parametrize("nearly_constant", ["label", "noise"])
def test_left_out_rows_are_predicted_as_by_fitting_without_them(nearly_constant: str) -> None:
    """The scale of logits and the choice of features rest on what scikit-learn keeps of its cross-validation. Features
    are divided by their own deviations where one that is nearly constant tells the classes, and by one number where
    those are noise."""
    from sklearn.linear_model import Ridge

    random = np.random.default_rng(0)
    x, labels = random.normal(size=(30, 50)), np.arange(30) % 2
    x[:, 0] += 2 * labels
    x[:, slice(1) if nearly_constant == "label" else slice(1, None)] /= 1000
    fit = fit_linear(x, labels, (x[:0], labels[:0]), np.array([1.0, 3.0])[labels])
    scale = x.std(0) if nearly_constant == "label" else np.sqrt(x.var(0).mean())
    alpha, scaled, targets = float(fit.penalty.removeprefix("alpha=")), x / scale, np.eye(2)[labels] * 2 - 1
    weights = np.array([1.0, 3.0])[labels]
    losses = []
    for i in range(30):
        rest = np.arange(30) != i
        one = Ridge(alpha).fit(scaled[rest], targets[rest], weights[rest])
        losses.append((one.predict(scaled[i : i + 1])[0] - targets[i]) ** 2)
    assert fit.loss == pytest.approx(np.mean(losses), rel=0.02)


def test_few_rows_without_mistakes_do_not_make_probabilities_certain() -> None:
    """The likeliest scale of rows that are all right would be endless: here as of a few, in both kinds of maps, and of
    texts that are too few for folds, as of the regressions themselves."""
    labels = np.arange(12) % 3
    x = 2.0 * np.eye(3)[labels] + np.random.default_rng(0).normal(size=(12, 3)) / 20
    dense = fit_linear(x, labels, (x[:0], labels[:0]), None)
    folds = fit_linear(csr_matrix(np.tile(x, (2, 1))), np.tile(labels, 2), (csr_matrix(x[:0]), labels[:0]), None)
    few = fit_linear(csr_matrix(x), labels, (csr_matrix(x[:0]), labels[:0]), None)
    for fit in (dense, folds, few):
        logits = torch.from_numpy(x @ fit.weights.T + fit.biases)
        sure = logits.softmax(1)[np.arange(12), labels]
        assert sure.min() > 0.9
        assert sure.max() < 1 - 1e-6


@pytest.mark.parametrize("held_out", [0, 10, 400])
def test_weights_of_classes_apply_to_texts_too(held_out: int) -> None:
    random = np.random.default_rng(0)
    labels = (np.arange(900) % 10 == 0).astype(int)
    x = csr_matrix((random.random((900, 6)) < 0.3) * 1.0 + labels[:, None] * (random.random((900, 6)) < 0.2))
    parts = x[held_out:], labels[held_out:], (x[:held_out], labels[:held_out])
    of_rows = np.array([1.0, 9.0])[np.concatenate([labels[held_out:], labels[:held_out]])]
    biases = [fit_linear(*parts, weights).biases for weights in (None, of_rows)]
    assert biases[1][1] - biases[1][0] > biases[0][1] - biases[0][0] + 1


def test_the_first_answer_of_a_run_loads_as_a_classifier(tmp_path: Path) -> None:
    for name, rows in {
        "classes of text": ["good film", "very bad"],
        "classes of series": [np.zeros((2, 30)), np.ones((2, 12))],
    }.items():
        own = recipe(name, tmp_path / name, "training.first_answer=only")
        run = train(own, tmp_path / f"{name} run", progress=False)
        classifier = LagClassifier.from_pretrained(run)
        assert set(classifier.predict(rows)) <= set(classifier.classes_)
        if classifier.kind_ == "texts":
            expected = predict_run(run, [{"text": text} for text in rows], progress=False)
            assert list(classifier.predict(rows)) == [row["predicted"] for row in expected]
    own = recipe("classes of text", tmp_path / "trained", "training.first_answer=none", "training.steps=1")
    trained = LagClassifier.from_pretrained(train(own, tmp_path / "deep", progress=False))
    assert set(trained.predict(["good film", "very bad"])) <= set(trained.classes_)
