"""Signals and their targets, from sounds in pairs, tables and records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from lagwise.data.series_windows import WindowCollator, windows
from lagwise.data.signals import Damage, WholeSignals, open_inputs, open_signals, power, prepare_signals


def sounds(root: Path, names: Mapping[str, tuple[int, int]] | list[str], *, channels: int = 1) -> Path:
    """Files of noise by their paths, with the given lengths and rates."""
    for number, (name, (length, rate)) in enumerate(
        dict(names if isinstance(names, Mapping) else dict.fromkeys(names, (80, 8000))).items()
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        x = np.random.default_rng(number).normal(0, 3000, (length, channels)).astype(np.int16)
        wavfile.write(path, rate, x[:, 0] if channels == 1 else x)
    return root


def pairs_of(root: Path) -> dict[str, list[tuple[str, str]]]:
    source = open_signals(str(root))
    return {
        split: [(str(path.relative_to(root)), str(source.partners[path].relative_to(root))) for path in paths]
        for split, paths in source.files.items()
    }


def test_sounds_are_paired_by_their_names(tmp_path: Path) -> None:
    sounds(tmp_path, ["noisy/a.wav", "noisy/x/b.wav", "clean/a.wav", "clean/x/b.wav"])
    (tmp_path / "README.md").write_text("about")
    dated = sounds(tmp_path / "dated", [f"{role}/2024.01.{i}.wav" for role in ("noisy", "clean") for i in range(2)])
    assert pairs_of(dated)["train"] == [(f"noisy/2024.01.{i}.wav", f"clean/2024.01.{i}.wav") for i in range(2)]
    shutil.rmtree(dated)
    assert pairs_of(tmp_path) == {"train": [("noisy/a.wav", "clean/a.wav"), ("noisy/x/b.wav", "clean/x/b.wav")]}
    assert "1 file is not read" in open_signals(str(tmp_path)).notes[0]


@pytest.mark.parametrize(
    "names",
    [
        ["train/input/a.wav", "train/target/a.wav", "test/input/a.wav", "test/target/a.wav"],
        ["inputs/train/a.wav", "targets/train/a.wav", "inputs/test/a.wav", "targets/test/a.wav"],
        ["noisy_trainset_wav/a.wav", "clean_trainset_wav/a.wav", "noisy_testset_wav/a.wav", "clean_testset_wav/a.wav"],
    ],
)
def test_folders_name_splits(tmp_path: Path, names: list[str]) -> None:
    sounds(tmp_path, names)
    assert pairs_of(tmp_path) == {"train": [(names[0], names[1])], "test": [(names[2], names[3])]}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["noisy/a.wav", "noisy/b.wav", "clean/a.wav"], r"noisy/b\.wav has no target of the same name"),
        (["noisy/a.wav", "clean/a.wav", "clean/b.wav", "clean/c.wav"], r"clean/b\.wav \(and 1 more\) has no input of"),
        (["noisy/a.wav"], "has no sounds in a folder of targets, which may be named clean, target"),
        (["clean/a.wav"], "has no sounds in a folder of inputs, which may be named noisy, input"),
        (["a.wav", "b.wav"], "not in pairs: put the inputs into a folder 'noisy'"),
        (["yes/a.wav", "no/a.wav"], "not in pairs"),
        (["train/noisy/a.wav", "train/clean/a.wav", "noisy/b.wav", "clean/b.wav"], "does not; rename it or move it"),
        (["noisy/a.wav", "noisy/a.b.wav", "clean/a.wav"], r"noisy/a\.b\.wav has no target of the same name"),
    ],
)
def test_sounds_without_partners_are_named(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_signals(str(sounds(tmp_path, names)))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_signals(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clean/b.wav": (81, 8000)}, r"noisy/b\.wav has 80 samples, its target has 81; cut them"),
        ({"clean/b.wav": (80, 16000)}, r"rate of 8000 Hz, its partner .*clean/b\.wav one of 16000 Hz"),
        (
            {"clean/b.wav": (80, 16000), "noisy/b.wav": (80, 16000)},
            r"noisy/b\.wav has a sampling rate of 16000 Hz, .*a\.wav has 8000",
        ),
    ],
)
def test_pairs_that_differ_are_named(tmp_path: Path, changes: dict[str, tuple[int, int]], message: str) -> None:
    names = {f"{role}/{name}.wav": (80, 8000) for role in ("noisy", "clean") for name in "abc"}
    sounds(tmp_path, {**names, **changes})
    with pytest.raises(ValueError, match=message):
        prepare_signals(open_signals(str(tmp_path)), progress=False)


def test_different_numbers_of_channels_are_named(tmp_path: Path) -> None:
    sounds(tmp_path, ["noisy/a.wav", "clean/a.wav", "noisy/b.wav", "clean/b.wav"])
    sounds(tmp_path, ["noisy/b.wav"], channels=2)
    with pytest.raises(ValueError, match=r"noisy/b\.wav has 2 channels, .*a\.wav has 1; give all"):
        prepare_signals(open_signals(str(tmp_path)), progress=False)


def test_a_given_rate_is_that_of_the_sounds(tmp_path: Path) -> None:
    sounds(tmp_path, ["noisy/a.wav", "clean/a.wav"])
    assert open_signals(str(tmp_path), rate=8000).reading_options() == {"rate": 8000}
    with pytest.raises(ValueError, match="rate of 8000 Hz, the model was trained at 16000 Hz; resample"):
        next(open_signals(str(tmp_path), rate=16000).signals("train"))


def test_inputs_need_no_targets(tmp_path: Path) -> None:
    sounds(tmp_path / "new", ["noisy/a.wav", "noisy/b.wav"])
    sounds(tmp_path / "pairs", ["noisy/a.wav", "clean/a.wav", "clean/b.wav"])
    for folder, names in (("new", ["a.wav", "b.wav"]), ("pairs", ["a.wav"])):
        files = open_inputs(str(tmp_path / folder)).files["train"]
        assert files == [tmp_path / folder / "noisy" / name for name in names]


def test_a_table_without_targets_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(ValueError, match=r"rows\.csv has no column 'target' \(columns: a, b\).*`targets=\[COLUMN\]`"):
        prepare_signals(open_signals(str(tmp_path / "rows.csv")), progress=False)


def test_columns_are_inputs_and_targets(tmp_path: Path) -> None:
    lines = ["id,a,b,clean,free", *(f"{i},{i % 7},{'' if i == 4 else -i},{2 * i},word" for i in range(30))]
    (tmp_path / "sensors.csv").write_text("\n".join(lines))
    found = open_signals(str(tmp_path / "sensors.csv"), features=["b", "a"], targets=["clean"])
    (signal,) = found.signals("train")
    assert signal.inputs.shape == (30, 2)
    assert np.isnan(signal.inputs[4, 0])
    np.testing.assert_array_equal(signal.targets[:, 0], 2 * np.arange(30))
    pairs = prepare_signals(found, progress=False)
    assert [rows["length"][:] for rows in pairs.splits.values()] == [[24], [3], [3]]
    both = np.stack([-np.arange(24.0), np.arange(24) % 7], axis=1)
    both[4, 0] = np.nan
    np.testing.assert_allclose(pairs.mean[0], np.nanmean(both, 0))
    np.testing.assert_allclose(pairs.std[0], np.nanstd(both, 0), rtol=1e-6)
    default = open_signals(str(tmp_path / "sensors.csv"), targets=["clean"])
    assert (default.inputs, default.targets) == (["a", "b", "free"], ("clean",))
    with pytest.raises(ValueError, match=r"line 2.*'free'|'free'.*line 2"):
        next(default.signals("train"))
    with pytest.raises(ValueError, match=r"unknown column of .*: 'cleen'.*did you mean 'clean'"):
        next(open_signals(str(tmp_path / "sensors.csv"), features=["a"], targets=["cleen"]).signals("train"))
    with pytest.raises(ValueError, match=r"'a', got \['a'\]"):
        open_signals(str(tmp_path / "sensors.csv"), features=["a"], targets=["a"])


def test_records_have_lists(tmp_path: Path) -> None:
    rows = [{"x": [[i, 1.0], [2.0, 3.0]], "y": [1.0, None], "target": [i, i]} for i in range(5)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    signals = list(open_signals(str(tmp_path / "rows.jsonl"), features=["x", "y"]).signals("train"))
    np.testing.assert_array_equal(signals[3].inputs, [[3, 1, 1], [2, 3, np.nan]])
    np.testing.assert_array_equal(signals[3].targets, [[3], [3]])
    np.savez(tmp_path / "rows.npz", input_values=np.ones((4, 9, 2)), target=np.ones((4, 8)))
    with pytest.raises(ValueError, match=r"rows\.npz, row 1 has 9 samples, its target has 8"):
        prepare_signals(open_signals(str(tmp_path / "rows.npz")), progress=False)


def test_infinite_and_absent_values_are_named(tmp_path: Path) -> None:
    for values, message in (
        ([1.0, np.inf, 2.0], "feature 1 of the inputs is infinite at sample 1"),
        ([np.nan] * 3, "all samples of the inputs are missing"),
    ):
        np.savez(tmp_path / "rows.npz", input_values=np.asarray([values] * 4), target=np.ones((4, 3)))
        with pytest.raises(ValueError, match=message):
            prepare_signals(open_signals(str(tmp_path / "rows.npz")), progress=False)


def noise_and_waves(tmp_path: Path) -> tuple[WholeSignals, Damage]:
    sounds(tmp_path, {f"waves/{split}/{i}.wav": (400, 8000) for split in ("train", "valid", "test") for i in range(3)})
    sounds(tmp_path, {f"noise/{split}/{i}.wav": (150, 8000) for split in ("train", "valid", "test") for i in range(2)})
    waves, noises = (
        prepare_signals(open_signals(str(tmp_path / name), alone=True), progress=False) for name in ("waves", "noise")
    )
    damage = Damage(noises, [0.0, 20.0])
    return WholeSignals(waves, "test", damage), damage


def test_noise_has_the_ratio_asked_for_and_is_that_of_the_split(tmp_path: Path) -> None:
    test, damage = noise_and_waves(tmp_path)
    assert [whole.ratio for whole in test] == [0.0, 20.0, 0.0]
    assert damage.noises is not None
    own = {s: [WholeSignals(damage.noises, s, Damage()).read(i)[0][:, 0] for i in range(2)] for s in ("train", "test")}
    for whole in test:
        noise = whole.inputs - whole.targets
        assert 10 * np.log10(power(whole.targets) / power(noise)) == pytest.approx(whole.ratio, abs=1e-3)
        heard = {
            s: max(abs(np.corrcoef(noise[:150, 0], np.roll(n, k))[0, 1]) for n in each for k in range(150))
            for s, each in own.items()
        }
        assert heard["test"] == pytest.approx(1, abs=1e-3)
        assert heard["train"] < 0.9
    again = WholeSignals(test.pairs, "test", damage)
    assert all(np.array_equal(one.inputs, other.inputs) for one, other in zip(test, again, strict=True))


def test_hidden_samples_are_missing_in_the_inputs_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", input_values=np.random.default_rng(0).normal(size=(4, 4000, 2)).astype(np.float32))
    pairs = prepare_signals(open_signals(str(tmp_path / "rows.npz"), alone=True), progress=False)
    whole = WholeSignals(pairs, "test", Damage(hide=0.2, hide_length=10))[0]
    hidden = np.isnan(whole.inputs)
    assert hidden.mean(0) == pytest.approx([0.2, 0.2], abs=0.04)
    spans = np.diff(np.flatnonzero(np.diff(np.pad(hidden[:, 0].astype(int), 1)))[:].reshape(-1, 2), axis=1)
    assert (spans[1:-1] >= 10).all()  # those at the ends may be cut
    for share, length in ((0.9, 100), (0.5, 1), (0.3, 5000)):
        made = [
            Damage(hide=share, hide_length=length)(np.ones((4000, 1)), 1.0, "test", None, random)
            for random in map(np.random.default_rng, range(200))
        ]
        assert np.isnan(made).mean() == pytest.approx(share, abs=0.08)
    assert not np.isnan(whole.targets).any()
    np.testing.assert_array_equal(whole.inputs[~hidden], whole.targets[~hidden])


def test_a_batch_is_padded_to_whole_steps_and_its_labels_marked(tmp_path: Path) -> None:
    values = np.arange(36, dtype=np.float32).reshape(4, 9)
    values[0, 2] = -100.0
    np.savez(tmp_path / "rows.npz", input_values=values, target=values)
    pairs = prepare_signals(open_signals(str(tmp_path / "rows.npz")), progress=False)
    signals = WholeSignals(pairs, "train", Damage(), delay=2)
    cuts = windows(signals.cut, [(0, 0, 9), (1, 0, 5)])
    batch = WindowCollator(4)([cuts[0], cuts[1]])
    assert batch["input_values"].shape == batch["labels"].shape == (2, 12, 1)
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert (batch["labels"] == -100).sum(1).flatten().tolist() == [2 + 3, 2 + 7]
    np.testing.assert_allclose(batch["labels"][0, 2:9, 0], signals.read(0)[1][:7, 0], rtol=1e-6)
