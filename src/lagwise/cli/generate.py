"""``lagwise generate``."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import at_least, number_option, run_argument, text_option, within
from lagwise.cli.terminal import read, write
from lagwise.process import quick_imports


def generate(
    run: Annotated[Path, run_argument("Folder of a trained run.")],
    prompt: Annotated[str, typer.Option(help="Text to continue; without one, a new document.")] = "",
    prompt_file: Annotated[
        typer.FileText | None,
        typer.Option(encoding="utf-8", help="Read the prompt from a file (`-`: standard input); it is not printed."),
    ] = None,
    stop: Annotated[
        list[str] | None, text_option("End before this text. May be given several times.", show_default=False)
    ] = None,
    special: Annotated[
        bool, typer.Option("--special", help="Read names such as `<|endoftext|>` in the prompt as special tokens.")
    ] = False,
    tokens: Annotated[int, number_option("Tokens to add at most.", within(1, 10**9, brackets="[]"))] = 500,
    temperature: Annotated[float, number_option("0 is greedy; above 1 is more random.", at_least(0))] = 0.8,
    top_p: Annotated[
        float,
        number_option("Sample from the most likely tokens with this total probability.", within(0, 1, brackets="(]")),
    ] = 0.95,
    seed: Annotated[
        int | None, number_option("Seed, to reproduce a sample.", within(0, 2**32 - 1, brackets="[]"))
    ] = None,
    compile: Annotated[
        bool, typer.Option(help="Compile the model's step first, for long texts. Done once per model.")
    ] = False,
) -> None:
    """Continue a prompt, streamed as it is generated. Speeds go to standard error; Ctrl-C ends the text.

    lagwise generate runs/best-lm --prompt "def " --stop "class "

    lagwise generate runs/best-lm --prompt-file book.txt --tokens 200 > more.txt

    To generate several times as fast, after 15 seconds to a minute of compilation for the first text:

    lagwise generate runs/best-lm --compile --tokens 100000 > long.txt
    """
    with quick_imports():
        from lagwise.models import generate_text
        from lagwise.models.loading import default_device, load_language_model

    if prompt and prompt_file is not None:
        raise typer.BadParameter("give --prompt or --prompt-file, not both")
    text = prompt if prompt_file is None else read(prompt_file)
    model, tokenizer = load_language_model(run, device="cpu" if compile else default_device())
    with nullcontext() if compile else suppress(ValueError, RuntimeError, OSError):  # what is there already is used
        model.compile_step(cached=not compile, report=lambda line: typer.echo(line, err=True))
    lines: list[str] = []
    try:
        generate_text(
            model,
            tokenizer,
            text,
            max_new_tokens=tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=stop or (),
            special=special,
            echo=prompt_file is None,
            write=write,
            report=lines.append,
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None  # as a shell reports it
    finally:
        if lines:
            typer.echo()
            typer.echo(lines[0], err=True)
