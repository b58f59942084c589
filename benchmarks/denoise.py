"""Speech and electrocardiograms without their noise: a causal model beside filters that need no training.

    python benchmarks/denoise.py speech sounds/ work/               # voices and noises of Debian's packages, kept apart
    python benchmarks/denoise.py ecg mit-bih/ work/                 # records of the MIT-BIH data base, kept apart
    python benchmarks/denoise.py train speech work/ [KEY=VALUE ...]
    python benchmarks/denoise.py train ecg work/ [KEY=VALUE ...]
    python benchmarks/denoise.py score speech work/ --out benchmarks/results/denoise-cpu.json
    python benchmarks/denoise.py noisereduce work/ --out benchmarks/results/denoise-cpu.json   # needs noisereduce

sounds/ has the unpacked packages asterisk-core-sounds-{en,fr,it,es,ru}-wav and asterisk-moh-opsound-wav (8 kHz).
English, French and Italian voices are for training, the Russian one is for validation and the Spanish one for the test.
The noise of each split is its own: babble of six voices of the split, pieces of music, and noise of several colours
with a hum. ECG noise is made: baseline wander below 0.7 Hz, noise of muscles from 20 to 150 Hz whose strength varies,
and the hum of the mains; records of DS1 are for training (every fifth for validation), those of DS2 for the test.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import wavfile
from scipy.signal import butter, filtfilt, lfilter, sosfiltfilt

VOICES = {"train": ("en_US", "fr_CA", "it_IT"), "valid": ("ru_RU",), "test": ("es_",)}
RATE = {"speech": 8000, "ecg": 360}
SHORTEST = 1.5  # seconds of a prompt
HELD_OUT = 150  # prompts of a held-out voice
NOISE = {"train": 20, "valid": 4, "test": 6}  # minutes, a third of each kind
RATIOS = "[-5, 0, 5, 10]"
RECIPES: dict[str, list[str]] = {
    "speech": [
        *("task.stride=32", "task.delay=96", "task.window=256", "data.length=16000"),
        *("training.steps=5000", "training.evaluate_every=500", "training.evaluate_tokens=100000"),
    ],
    "ecg": [
        *("task.stride=6", "task.delay=120", "task.window=240", "data.length=3600", "model.hidden_size=64"),
        *("training.steps=3000", "training.evaluate_tokens=60000"),
    ],
}


def speech(sounds: Path, work: Path) -> None:
    """Write the voices and noises of each split as .wav files."""
    random = np.random.default_rng(0)
    music = sorted(sounds.rglob("moh/*.wav")) or sorted(sounds.rglob("*opsound*/**/*.wav"))
    for number, (split, voices) in enumerate(VOICES.items()):
        clips = []
        for voice in voices:
            folder = next(each for each in sorted(sounds.rglob(f"{voice}*")) if each.is_dir())
            recordings = [read_clip(path) for path in sorted(folder.rglob("*.wav")) if "silence" not in path.parts]
            clips += [clip for clip in recordings if len(clip) >= SHORTEST * RATE["speech"]]
        selected = clips if split == "train" else [clips[i] for i in random.permutation(len(clips))[:HELD_OUT]]
        for i, clip in enumerate(selected):
            write(work / "speech" / split / f"{i:04d}.wav", clip, RATE["speech"])
        size = NOISE[split] * 20 * RATE["speech"]
        songs = np.concatenate([level(read_clip(path)) for path in music[number::3]])
        noises = {
            "babble": babble(clips, size, random),
            "music": np.resize(songs, size),
            "colours": colours(size, random),
        }
        for name, noise in noises.items():
            write(work / "speech-noise" / split / f"{name}.wav", 0.1 * level(noise), RATE["speech"])
        minutes = sum(map(len, selected)) / RATE["speech"] / 60
        print(f"{split}: {len(selected)} prompts, {minutes:.1f} minutes", flush=True)


def read_clip(path: Path) -> np.ndarray:
    rate, samples = wavfile.read(path)
    if rate != RATE["speech"] or samples.dtype != np.int16:
        raise ValueError(f"{path} is not of {RATE['speech']} Hz and 16 bits")
    return samples.astype(np.float32) / 32768


def write(path: Path, samples: np.ndarray, rate: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, samples.astype(np.float32))


def level(x: np.ndarray) -> np.ndarray:
    return x / max(float(x.std()), 1e-9)


def babble(clips: list[np.ndarray], size: int, random: np.random.Generator) -> np.ndarray:
    """Mix six voices at once, each saying prompts in another order."""
    total = np.zeros(size, np.float32)
    for _ in range(6):
        speech_clips, order = [], random.permutation(len(clips))
        while sum(map(len, speech_clips)) < size:
            speech_clips += [level(clips[i]) for i in order]
        total += np.roll(np.concatenate(speech_clips)[:size], int(random.integers(size)))
    return total


def colours(size: int, random: np.random.Generator) -> np.ndarray:
    """Draw stretches of 5 s of white, pink and brown noise and of a hum with its harmonics, of changing strength."""
    rate = RATE["speech"]
    stretches = []
    for start in range(0, size, 5 * rate):
        n = min(5 * rate, size - start)
        spectrum = np.fft.rfft(random.normal(size=n))
        shape = np.maximum(np.fft.rfftfreq(n, 1 / rate), 20) ** -random.choice([0, 0.5, 1])
        noise = level(np.fft.irfft(spectrum * shape, n))
        if random.random() < 0.5:
            seconds = np.arange(n) / rate
            base = random.choice([50, 60]) * random.uniform(0.98, 1.02)
            noise = noise + level(
                sum(np.sin(2 * np.pi * base * k * seconds + random.uniform(0, 6)) / k for k in range(1, 9))
            )
        swell = np.interp(np.arange(n), np.linspace(0, n, 6), random.uniform(0.5, 1.5, 6))
        stretches.append(noise * swell)
    return np.concatenate(stretches)


def ecg(records: Path, work: Path) -> None:
    """Write the first lead of each record, without its own wander, and noise for each split."""
    import ecg as beats  # benchmarks/ecg.py

    random, rate = np.random.default_rng(0), RATE["ecg"]
    for split, names in beats.SPLITS.items():
        for name in names:
            lead = beats.read_record(records / name)["input_values"][:, 0].astype(np.float64)
            # the target: each record as it is, but for wander and hum of its own
            low, high = butter(2, 0.5, "highpass", fs=rate), butter(4, 40, "lowpass", fs=rate)
            quiet = filtfilt(high[0], high[1], filtfilt(low[0], low[1], lead))
            write(work / "ecg" / split / f"{name}.wav", quiet, rate)
        size = NOISE[split] * 60 * rate
        write(work / "ecg-noise" / split / "made.wav", 0.1 * level(ecg_noise(size, random)), rate)
        print(f"{split}: {len(names)} records", flush=True)


def ecg_noise(size: int, random: np.random.Generator) -> np.ndarray:
    """Draw in stretches of 30 s wander, noise of muscles, both, or both and the hum of the mains."""
    rate, stretches = RATE["ecg"], []
    for start in range(0, size, 30 * rate):
        n = min(30 * rate, size - start)
        white = random.normal(size=(2, n + 20 * rate))
        below, between = butter(2, random.uniform(0.15, 0.7), fs=rate), butter(2, [20, 150], "bandpass", fs=rate)
        wander = level(lfilter(below[0], below[1], white[0])[20 * rate :])
        muscle = level(lfilter(between[0], between[1], white[1])[20 * rate :])
        swell = np.exp(
            np.interp(
                np.arange(n),
                np.arange(0, n + rate, rate),
                random.normal(0, 0.8, n // rate + 2)[: len(np.arange(0, n + rate, rate))],
            )
        )
        kind = random.integers(4)
        noise = wander * (kind != 1) + level(muscle * swell) * (kind != 0)
        if kind == 3:
            noise = noise + 0.7 * np.sin(2 * np.pi * random.choice([50, 60]) * np.arange(n) / rate)
        stretches.append(level(noise))
    return np.concatenate(stretches)


def train_run(kind: str, work: Path, overrides: list[str]) -> None:
    from lagwise.training import load_recipe, resume, train

    run = work / f"run-{kind}"
    before, used = time.process_time(), run / "cpu-seconds.json"
    try:
        if (run / "recipe.yaml").is_file():
            resume(run)
        else:
            options = [f"task.noise={work / f'{kind}-noise'}", f"task.ratios={RATIOS}", *RECIPES[kind]]
            recipe = load_recipe("denoise", [*options, *overrides])
            recipe.data.source = str(work / kind)
            train(recipe, run)
    finally:
        earlier = json.loads(used.read_text()) if used.is_file() else 0.0
        if run.is_dir():
            used.write_text(json.dumps(earlier + time.process_time() - before))


def score(kind: str, work: Path) -> dict[str, Any]:
    """Score the run and filters on the same signals; write the test's signals for other programs."""
    from lagwise.evaluation.signals import signal_scores
    from lagwise.models import load_model
    from lagwise.runs import evaluate_run
    from lagwise.training import load_recipe, make_task, read_metrics

    run = work / f"run-{kind}"
    evaluation = evaluate_run(run)
    task = make_task(load_recipe(str(run / "recipe.yaml")))
    signals = task.open(progress=False).scored["test"]
    for i, signal in enumerate(signals):
        for name, x in (("noisy", signal.inputs), ("clean", signal.targets)):
            write(work / f"{kind}-test" / name / f"{i:04d}_{signal.ratio:g}dB.wav", x[:, 0], RATE[kind])
    cpu = run / "cpu-seconds.json"
    result: dict[str, Any] = {
        "test": evaluation["test"],
        "valid": evaluation["valid"],
        "delay_seconds": evaluation["delay"] / RATE[kind],
        "parameters": load_model(run)[0].num_parameters(),
        "steps": max(line["step"] for line in read_metrics(run)),
        "cpu_seconds": json.loads(cpu.read_text()) if cpu.is_file() else None,
        "task": {
            key: value for key, value in task.__dict__.items() if key in ("stride", "delay", "window", "loss", "ratios")
        },
    }
    if kind == "ecg":
        for name, band in (
            ("band-pass 0.5 to 40 Hz, both ways", (0.5, 40)),
            ("band-pass 0.67 to 30 Hz, both ways", (0.67, 30)),
        ):
            sos = butter(2, band, "bandpass", fs=RATE[kind], output="sos")
            scores = [
                {**signal_scores(sosfiltfilt(sos, w.inputs, axis=0), w.targets), "ratio": w.ratio} for w in signals
            ]
            result.setdefault("filters", {})[name] = summary(scores, evaluation["test"]["input"])
    return result


def summary(scores: list[dict[str, Any]], input_scores: dict[str, float]) -> dict[str, Any]:
    means = {name: float(np.mean([each[name] for each in scores])) for name in ("mse", "mae", "si_sdr")}
    ratios = sorted({each["ratio"] for each in scores})
    by_ratio = {f"{r:g}": float(np.mean([each["si_sdr"] for each in scores if each["ratio"] == r])) for r in ratios}
    return {**means, "si_sdr_gain": means["si_sdr"] - input_scores["si_sdr"], "si_sdr_by_ratio": by_ratio}


def noisereduce(work: Path) -> dict[str, Any]:
    """Run noisereduce on the test's noisy signals, in an environment that has it (and needs no lagwise)."""
    nr: Any = importlib.import_module("noisereduce")

    results: dict[str, Any] = {"version": importlib.metadata.version("noisereduce")}
    files = sorted((work / "speech-test" / "noisy").glob("*.wav"))
    kinds = {"stationary": {"stationary": True}, "non-stationary": {"stationary": False}}
    kinds |= {f"{name}, half": {**options, "prop_decrease": 0.5} for name, options in kinds.items()}
    for name, options in kinds.items():
        begun, scores = time.process_time(), []
        for path in files:
            rate, noisy = wavfile.read(path)
            clean = wavfile.read(path.parent.with_name("clean") / path.name)[1]
            denoised = nr.reduce_noise(y=noisy, sr=rate, n_fft=512, **options)
            scores.append({"made": ratio(denoised, clean), "input": ratio(noisy, clean), "dB": path.stem.split("_")[1]})
        means = {key: float(np.mean([each[key] for each in scores])) for key in ("made", "input")}
        by_ratio = {
            level: float(np.mean([each["made"] for each in scores if each["dB"] == level]))
            for level in sorted({each["dB"] for each in scores})
        }
        results[name] = {
            "si_sdr": means["made"],
            "si_sdr_gain": means["made"] - means["input"],
            "si_sdr_by_ratio": by_ratio,
            "cpu_seconds": time.process_time() - begun,
        }
    return results


def ratio(y: np.ndarray, t: np.ndarray) -> float:
    """Compute SI-SDR in dB, as `lagwise.evaluation.signals.si_sdr`, which this environment may not have."""
    y, t = y.astype(np.float64), t.astype(np.float64)
    projection = y @ t / (t @ t) * t
    return float(10 * np.log10((projection @ projection) / ((projection - y) @ (projection - y))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("speech", "ecg"):
        command = commands.add_parser(name)
        command.add_argument("source", type=Path)
        command.add_argument("work", type=Path)
    for name in ("train", "score"):
        command = commands.add_parser(name)
        command.add_argument("kind", choices=["speech", "ecg"])
        command.add_argument("work", type=Path)
        if name == "train":
            command.add_argument("overrides", nargs="*")
        else:
            command.add_argument("--out", type=Path, required=True)
    command = commands.add_parser("noisereduce")
    command.add_argument("work", type=Path)
    command.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command in ("speech", "ecg"):
        {"speech": speech, "ecg": ecg}[options.command](options.source, options.work)
    elif options.command == "train":
        train_run(options.kind, options.work, options.overrides)
    else:
        name = "noisereduce" if options.command == "noisereduce" else options.kind
        result = noisereduce(options.work) if name == "noisereduce" else score(options.kind, options.work)
        saved = json.loads(options.out.read_text()) if options.out.is_file() else {"command": "", "results": {}}
        line = f"python benchmarks/denoise.py {' '.join(sys.argv[1:])}"
        command = "; ".join(dict.fromkeys(filter(None, [*saved["command"].split("; "), line])))
        results = {**saved["results"], name: result}
        try:
            from lagwise_papers.bench.timing import save_results
        except ImportError:  # the environment of noisereduce, after the scores of the model
            options.out.write_text(json.dumps({**saved, "command": command, "results": results}, indent=1) + "\n")
        else:
            save_results(options.out, command, results)


if __name__ == "__main__":
    main()
