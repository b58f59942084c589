"""A model of sounds in continuous time at other sampling rates than that of its training: the language of a prompt.

    python benchmarks/sound_rates.py prepare root/ work/    # needs `pip install av`, which reads G.722
    python benchmarks/sound_rates.py train work/ [KEY=VALUE ...] [--sounds mixed]
    python benchmarks/sound_rates.py score work/ --out benchmarks/results/sound-rates-cpu.json

root/ has the unpacked Debian packages asterisk-core-sounds-{en,es,fr,it}-g722: prompts at 16 kHz. Half a second of
each, where it is loudest, is English, Spanish, French or Italian. The model, of S4D's kernels, is trained on files of
16 kHz. The same test files are then resampled (polyphase) to other rates, and evaluated in three ways: as files of
their rate, for which `lagwise evaluate` scales the steps of the kernels; with a header that says 16 kHz, so that
nothing is scaled; and resampled back to 16 kHz.

The training is repeated with every second file at 8 kHz: as files of their rates (mixed), for which the steps of
kernels are scaled row by row, with headers that all say 16 kHz (mixed-unscaled), and all resampled to 16 kHz
(mixed-resampled).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from scipy.io import wavfile
from scipy.signal import resample_poly

RATE = 16000
CLIP = RATE // 2  # samples
COUNTS = {"train": 200, "valid": 40, "test": 100}  # prompts of each language
RATES = {24000: (3, 2), 16000: (1, 1), 12000: (3, 4), 8000: (1, 2)}  # Hz, and the ratio to that of training
SOUNDS = ("sounds", "mixed", "mixed-resampled", "mixed-unscaled")
OPTIONS = [
    *("task.stride=1", "model.hidden_size=32", "model.num_hidden_layers=2", "model.norm=batch"),
    "model.block={name: prenorm, norm: batch, token_mixer: {name: gtu, expansion: 1, kernel: {name: s4d, modes: 16}}, "
    "channel_mixer: {name: mlp, expansion: 2}}",
    *("training.steps=400", "training.batch_size=16", "training.first_answer=none", "training.select=best"),
    *("training.evaluate_every=100", "data.length=8000"),
]


def prepare(root: Path, work: Path) -> None:
    """Write the clips of each split and language as .wav files of 16 kHz, and those of the test at other rates."""
    random = np.random.default_rng(0)
    for voice in sorted(each for each in root.rglob("sounds/*") if each.is_dir()):
        paths = sorted(voice.rglob("*.g722"))
        clips = [clip for i in random.permutation(len(paths)) if (clip := loudest(read_prompt(paths[i]))) is not None]
        start = 0
        for split, count in COUNTS.items():
            for number, clip in enumerate(clips[start : start + count]):
                name = Path(voice.name[:2]) / f"{number:03d}.wav"
                write(work / "sounds" / split / name, clip, RATE)
                for hertz, (up, down) in RATES.items() if split == "test" else ():
                    resampled = resample_poly(clip, up, down)
                    write(work / f"{hertz}-as-it-is" / name, resampled, hertz)
                    write(work / f"{hertz}-unscaled" / name, resampled, RATE)
                    write(work / f"{hertz}-resampled" / name, resample_poly(resampled, down, up)[:CLIP], RATE)
            start += count
    mix(work)


def mix(work: Path) -> None:
    """Write the sounds of ``prepare`` with every second file of each split at 8 kHz, in three ways."""
    for path in sorted((work / "sounds").rglob("*.wav")):
        clip, name = wavfile.read(path)[1].astype(np.float64), path.relative_to(work / "sounds")
        slow = int(path.stem) % 2 == 1
        resampled = resample_poly(clip, 1, 2) if slow else clip
        write(work / "mixed" / name, resampled, RATE // 2 if slow else RATE)
        write(work / "mixed-unscaled" / name, resampled, RATE)
        write(work / "mixed-resampled" / name, resample_poly(resampled, 2, 1)[:CLIP] if slow else clip, RATE)


def read_prompt(path: Path) -> np.ndarray:
    """Read the samples of a file of G.722 at 16 kHz, within -1 and 1."""
    import av  # pyrefly: ignore[missing-import]  # only for this part

    with av.open(str(path), format="g722") as file:
        frames = [frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]
    return np.concatenate(frames).astype(np.float64) / 32768


def loudest(samples: np.ndarray) -> np.ndarray | None:
    """Find the loudest half second, at a deviation of 0.1; None if there is none."""
    power = np.cumsum(np.pad(samples**2, (1, 0)))
    if len(samples) < CLIP or power[-1] == 0:
        return None
    start = int(np.argmax(power[CLIP:] - power[:-CLIP]))
    clip = samples[start : start + CLIP]
    return 0.1 * clip / clip.std()


def write(path: Path, samples: np.ndarray, hertz: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, hertz, samples.astype(np.float32))


def run_of(work: Path, sounds: str) -> Path:
    return work / ("run" if sounds == "sounds" else f"run-{sounds}")


def score(work: Path, out: Path) -> None:
    from lagwise.runs import evaluate_run
    from lagwise_papers.bench.timing import save_results

    results = []
    for trained in filter(lambda each: run_of(work, each).is_dir(), SOUNDS):
        for hertz in RATES:
            scores = {}
            for way in ("as-it-is", "unscaled", "resampled"):
                source = str(work / f"{hertz}-{way}")
                evaluation = evaluate_run(run_of(work, trained), source=source, progress=False)["test"]
                scores[way.replace("-", "_")] = evaluation["accuracy"]
            results.append({"trained": trained, "hertz": hertz, "sounds": evaluation["rows"], **scores})
            print(json.dumps(results[-1]), flush=True)
    save_results(out, f"python benchmarks/sound_rates.py {' '.join(sys.argv[1:])}", results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "train", "score"):
        command = commands.add_parser(name)
        if name == "prepare":
            command.add_argument("root", type=Path)
        command.add_argument("work", type=Path)
        if name == "train":
            command.add_argument("--sounds", choices=SOUNDS, default=SOUNDS[0])
            command.add_argument("overrides", nargs="*")
        if name == "score":
            command.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.root, options.work)
    elif options.command == "train":
        from lagwise.training import load_recipe, train

        recipe = load_recipe("signal", [*OPTIONS, *options.overrides])
        recipe.data.source = str(options.work / options.sounds)
        train(recipe, run_of(options.work, options.sounds))
    else:
        score(options.work, options.out)


if __name__ == "__main__":
    main()
