"""``lagwise data`` and ``lagwise theory``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.terminal import at_least, existing_folder, number_option, path_option, plain
from lagwise.extras import require


def data(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="`lra-listops`, `lra-pathfinder`, `lra-path-x` or `lra-retrieval`.")
    ],
    out: Annotated[Path | None, path_option("Folder to write; by default data/NAME.")] = None,
    rows: Annotated[
        int | None,
        number_option(
            "Training rows of ListOps (96,000) or retrieval (20,000), or images of all splits (200,000).", at_least(10)
        ),
    ] = None,
    seed: Annotated[int, number_option("Seed of the generator.", at_least(0))] = 0,
    texts: Annotated[Path | None, path_option("For lra-retrieval: a folder of texts, a file each.", "--data")] = None,
) -> None:
    """Generate a data set of Long Range Arena in its own file format.

    Each row depends only on the seed, its split and its number, and those of retrieval, which asks whether two passages
    are from the same text, on the texts:

        lagwise data lra-listops --out listops/

        lagwise data lra-pathfinder --rows 20000

        lagwise data lra-retrieval --data books/ --out pairs/
    """
    from lagwise_papers.data.generated import generate

    folder = out or Path("data") / name
    generate(name, folder, rows=rows, seed=seed, texts=texts)
    typer.echo(f"written: {folder}")


def theory(out: Annotated[Path, path_option("Folder for the figures.")] = Path("plots") / "theory") -> None:
    """Draw the theorems of SKI-TNN beside measurements."""
    require("plot", "figures")
    from lagwise_papers.theory_figures import plot_theory

    for file in plot_theory(out):
        typer.echo(plain(str(file)))


def import_model(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", parser=existing_folder, help="Folder of a model with config.json and safetensors."
        ),
    ],
    out: Annotated[Path, path_option("Folder for the result.")],
    text: Annotated[
        list[str] | None,
        typer.Option(help="Column that a classifier reads (repeat it for several, which are joined)."),
    ] = None,
    labels: Annotated[str | None, typer.Option(help="Names of its classes in order, separated by commas.")] = None,
) -> None:
    """Convert a MEGA or HyenaDNA model that transformers saved.

    It takes MEGA, which transformers 5 no longer has: language models and classifiers of sequences and of tokens; and
    HyenaDNA's language models and classifiers, without their code.
    The logits are the same. A classifier of sequences is a run for lagwise predict.

    lagwise import mega-wikitext --out runs/mega-wikitext

    lagwise import hyenadna-tiny-1k-seqlen-hf --out runs/hyenadna

    lagwise import hosts --out runs/hosts --text sequence --labels human,swine,avian
    """
    from lagwise_papers.imports.runs import import_run

    names = [name.strip() for name in labels.split(",")] if labels else ()
    result = import_run(folder, out, text=text or (), labels=names)
    typer.echo(plain(f"{result['model']}, {result['parameters']:,} parameters: {out}"))
    if "no_tokenizer" in result:
        typer.echo(plain(f"Without a tokenizer: {result['no_tokenizer']}"), err=True)
