"""Commands of ``lagwise``."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lagwise.cli import failures
from lagwise.cli.forecast import forecast
from lagwise.cli.terminal import (
    at_least,
    folder_or,
    integers,
    number_option,
    path_option,
    plain,
    print_table,
    text_option,
    use_utf8,
    within,
)
from lagwise.cli.uses import Run, embed, export, generate, plot, predict, serve, watch
from lagwise.extras import require
from lagwise.files import check_unused
from lagwise.outside import Registry
from lagwise.process import group_size, is_first, keep_freed_memory, leave_group, quick_imports, share_cores

_OTHERS = Registry("command", None, "lagwise.commands", {})


class _Commands(TyperGroup):
    """The commands below, and those of other packages, which import this module: functions, or groups of commands."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        for name, part in _OTHERS.items():
            others = part
            if not isinstance(part, typer.Typer):
                others = typer.Typer(add_completion=False)
                others.command(name)(part)
            command: Any = typer.main.get_command(others)
            command.name, command.rich_help_panel = name, "Papers"
            self.commands[name] = command


app = typer.Typer(
    cls=_Commands,
    help="Long-sequence models whose token mixing depends on lag: train, evaluate, stream, measure.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


def train(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Changes to the recipe, such as `training.steps=5000` or `model=fd-tnn`."
        ),
    ] = None,
    source: Annotated[
        str | None,
        text_option(
            "Text (.txt, .jsonl, .parquet), labelled rows (.csv, .tsv, .npz too), a folder, `stdlib`, `hub:NAME`.",
            "--data",
        ),
    ] = None,
    recipe: Annotated[
        str | None, text_option("Name of a recipe (see `lagwise recipes`) or a YAML file.", show_default="best-lm")
    ] = None,
    out: Annotated[Path | None, path_option("Folder for the run; by default runs/RECIPE.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN|auto",
            parser=folder_or("auto"),
            help="Resume an interrupted run, without other options; `auto` beside them begins or resumes the run.",
        ),
    ] = None,
) -> None:
    """Train a model: on text, on labelled rows, or on a task that generates its data.

    Each run leaves a folder with the model, its tokenizer, the resolved recipe, metrics and checkpoints:

        lagwise train --data my.txt

        lagwise train --data my.txt --out runs/long training.steps=5000 data.length=1024

        lagwise train --recipe classify --data reviews.csv task.text=review task.label=stars

        lagwise train --recipe classify --data reviews.csv model=linear

        lagwise train --recipe classify --data reviews.csv model=ski-tnn

    Recipes for your own labelled rows (`classify`, `signal`, `series`, `tnn-digits`) first fit a linear model of fixed
    features, in seconds, and end with it unless the trained model is better on held-out rows. `model=linear` stops
    after it; with another word, such as `model=tnn`, the trained model is compared with nothing.

        lagwise train --recipe associative-recall

        lagwise train --resume runs/long

    The same command for every start, where a scheduler may stop and restart it:

        lagwise train --data my.txt --out runs/long --resume auto

    Several processes share the batch under torchrun: `torchrun --nproc-per-node 2 -m lagwise train ...`
    """
    require("train", "training")
    import lagwise.training as training
    from lagwise.training.recipe import DEFAULT_RECIPE

    automatic = resume == Path("auto")
    continued = None if automatic else resume
    if continued is not None and (overrides or source or out or recipe):
        raise typer.BadParameter("--resume continues a run as it was; give no other options or overrides")
    recipe = recipe or DEFAULT_RECIPE
    settings = training.load_recipe(recipe, overrides or [])  # before what follows loads PyTorch
    if source and any(override.startswith("data.source=") for override in overrides or ()):
        raise typer.BadParameter("give --data or data.source, not both")
    settings.data.source = source or settings.data.source
    folder = continued or out or Path("runs") / Path(recipe).stem
    if resume is None and is_first():
        check_unused(folder)
    done = resume is not None and (folder / "config.json").is_file()
    with quick_imports():
        from lagwise.training import train as train_recipe

    try:
        if continued is not None:
            training.resume(folder)
        else:
            (training.train_or_resume if automatic else train_recipe)(settings, folder)
    except KeyboardInterrupt:
        if is_first() and (folder / "recipe.yaml").is_file():
            typer.echo(f"\nStopped. To resume: lagwise train --resume {plain(shlex.quote(str(folder)))}", err=True)
        raise
    if is_first():
        _report_training(folder, done)


#: How to use a trained model, by the column that it predicts, or else by whether it reads one text.
_USES = {"bits_per_byte": "generate {run} --prompt ...", "filled": 'predict {run} --text "... <|mask|> ..."'}
_USES |= {"one text": "predict {run} --text ...", "rows": "predict {run} --data ..."}


def _report_training(folder: Path, done: bool) -> None:
    import lagwise.training as training

    recipe, name = training.load_recipe(str(folder / "recipe.yaml")), plain(shlex.quote(str(folder)))
    task, metrics = training.make_task(recipe), training.read_metrics(folder)
    if done:
        typer.echo(f"{name} was finished; a run that goes on from it: lagwise train model.init_from={name} --out ...")
    trained = f"\nTrained: {name}"
    if ending := training.outcome(folder, recipe, task, metrics):
        (which, scores), headline = ending, task.logged_headline(metrics)
        trained += f", with {which}: validation {headline.label} {scores[headline.name]:.4f}"
    reads = "one text" if task.inputs == "tokens" and len(task.columns()) == 1 else "rows"
    use = _USES.get(task.predicts, _USES[reads]).format(run=name)
    typer.echo(f"{trained}\nNext:    lagwise evaluate {name}\n         lagwise {use}")


#: Those that `lagwise recipes` lists: for one's own text, rows, series, recordings and images.
_OWN_DATA = (
    *("best-lm", "tnn-lm", "tnn-mlm", "classify", "series", "signal", "signal-steps", "denoise", "chip"),
    *("forecast-tnn", "forecast-modal", "tnn-digits", "tnn-cifar"),
)


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe in full.")] = None,
    every: Annotated[bool, typer.Option("--all", help="List those of papers and comparisons too.")] = False,
) -> None:
    """List the recipes for your own data, or show one with every key that can be overridden and what the keys mean."""
    from lagwise.data.options import DataOptions
    from lagwise.tables import meanings
    from lagwise.training.recipe import TrainingOptions, load_recipe, recipe_names

    if name is None:
        names = [*_OWN_DATA, *([each for each in recipe_names() if each not in _OWN_DATA] if every else ())]
        for each in names:
            typer.echo(f"{each:<24} {load_recipe(each).description}")
        if not every:
            typer.echo("\nlagwise recipes --all lists the others too: those of papers and of models to compare with.")
        return
    recipe = load_recipe(name)
    from lagwise.tasks import TASKS  # which loads PyTorch

    typer.echo(recipe.to_yaml())
    task = inspect.getdoc(TASKS[recipe.task["name"]]) or ""
    typer.echo("\n".join(f"# task: {line}" for line in task.splitlines() if line))
    for section, options in (("data", DataOptions), ("training", TrainingOptions)):
        for key, _, _, meaning in meanings(options):
            typer.echo(f"# {section}.{key}: {' '.join(meaning.split())}")
    typer.echo("# model: one word is a kind of model (model=tnn; model=linear stops after the first answer)")
    typer.echo("# model.init_from: a run to start from")
    typer.echo("# model.block: options of the blocks, mixers and kernels named there; an unknown name lists them all")


def evaluate(
    run: Run,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the model that its weights allow.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Context lengths, or longer sides of images in pixels, separated by commas.",
            show_default="512,1024,2048,4096,8192,14336; of a task, the trained length",
        ),
    ] = None,
    source: Annotated[
        str | None,
        text_option(
            "Other data than the run's own, as for `train`: the test split is scored, or all rows of a table "
            "without splits.",
            "--data",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        number_option(
            "Tokens of each split to use, from its start; of a task, at each length.",
            at_least(2),
            "--tokens",
            show_default="229377; of a task, those of 1000 sequences",
        ),
    ] = None,
    baseline: Annotated[
        bool,
        typer.Option("--baseline", help="Score simple answers beside it: the most common class, and the first answer."),
    ] = False,
    learn: Annotated[
        float | None,
        number_option(
            "Score a language model once more as it learns from what it has scored, at this rate, such as 3e-4.",
            within(0, 1, brackets="(]"),
        ),
    ] = None,
) -> None:
    """Score a run on held-out data.

    Language models: bits per byte and perplexity at several context lengths, beside general compressors. Classifiers:
    accuracy, F1 and the confusion matrix. Regressions: correlations and the mean squared error. Associative recall:
    accuracy at the trained length or others.

    lagwise evaluate runs/best-lm --lengths 512,14336

    Also as it learns from each part of the text after scoring it (dynamic evaluation):

    lagwise evaluate runs/best-lm --lengths 512 --learn 3e-4

    With another engine, or a finer grid of a frequency kernel, than in training:

    lagwise evaluate runs/tnn-lm model.block.token_mixer.engine=ski

    lagwise evaluate runs/fd-tnn-lm model.block.token_mixer.kernel.grid=2048
    """
    with quick_imports():
        from lagwise.runs.evaluate import evaluate_run, open_run
        from lagwise.tasks.labelled import constant_note, constant_of

    parsed = None if lengths is None else integers(lengths, "--lengths")
    result = evaluate_run(
        run, parsed, source=source, max_tokens=max_tokens, overrides=overrides or (), baseline=baseline, learn=learn
    )
    recipe, task = open_run(run, plain=True)
    if recipe.data.source is not None:  # otherwise they are generated
        typer.echo(plain(f"Test data: {result['data']}"))
    for table in task.tables(result):
        print_table(*table)
    constant = constant_of(result)
    if constant and (note := constant_note(result["test"], constant, task.headline.name, "test rows")):
        typer.echo(note)
    if left_out := result.get("left_out"):
        typer.echo(f"Left out, as they are over the model's limit of tokens: {', '.join(map(str, left_out))}")


def convert(
    run: Run,
    tolerance: Annotated[
        float,
        number_option(
            "Largest error of a channel's kernel at any frequency, over its largest gain.", within(0, 1, brackets="()")
        ),
    ] = 1e-3,
    out: Annotated[Path | None, path_option("Folder for the result.", show_default="RUN-recurrent")] = None,
    max_order: Annotated[
        int | None,
        number_option("Most states of a channel.", at_least(1), show_default="a quarter of its taps, at most 256"),
    ] = None,
    lags: Annotated[int, number_option("Taps of a kernel that never decays.", at_least(1))] = 4096,
) -> None:
    """Turn a model's lag kernels into state spaces: constant memory and time per token, at any length.

    Prints the states of each layer, its error, which holds for every channel at every frequency, relative to the
    channel's largest gain, and tokens per second before and after. It pays for kernels that reach far or have no end.

    lagwise convert runs/best-lm --tolerance 1e-3

    lagwise evaluate runs/best-lm-recurrent

    lagwise generate runs/best-lm-recurrent --prompt "def "
    """
    with quick_imports():
        from lagwise.runs import convert_run

    options = {"lags": lags, "max_order": max_order}
    result = convert_run(run, tolerance, out, **options)
    rows = []
    for each in result["layers"]:
        layer = ".".join(part for part in each["layer"].split(".") if part.isdigit())
        rows.append((layer, each["taps"], " / ".join(map(str, each["order"])), f"{each['error']:.1e}"))
    print_table(
        f"Kernels as state spaces of {result['modes']} modes, every error within {result['tolerance']:g}",
        ("layer", "taps", "states: min / median / max", "error"),
        rows,
    )
    if speeds := result.get("tokens_per_second"):  # none where the model takes only a few tokens
        before, after = speeds["before"], speeds["after"]
        typer.echo(f"Tokens/s: {before:,.0f} before, {after:,.0f} after ({after / before:.2f}x)")
    typer.echo(plain(f"Written: {result['out']}"))


def _version(show: bool) -> None:
    if show:
        from lagwise._version import __version__

        typer.echo(f"lagwise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Long-sequence models whose token mixing depends on lag: train, evaluate, stream, measure."""
    if group_size() > 1 and context.invoked_subcommand != "train":
        if not is_first():
            raise typer.Exit
        leave_group()
        typer.echo(f"Only `lagwise train` shares its work: one process does `{context.invoked_subcommand}`.", err=True)


# In the order in which `lagwise --help` lists them.
for _panel, _commands in {
    "Train": (train, evaluate, plot, forecast, recipes),
    "Use a run": (generate, predict, embed, watch, convert),
    "Take a run elsewhere": (serve, export),
}.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)


def main() -> None:
    """Run the command line."""
    use_utf8()
    keep_freed_memory()
    share_cores()
    failures.run(app)
