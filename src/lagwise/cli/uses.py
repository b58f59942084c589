"""Commands for a trained run, or for any other folder of a model."""

from __future__ import annotations

import io
import json
import shlex
import socket
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from lagwise.cli.terminal import (
    at_least,
    existing_file,
    number_option,
    one_of,
    path_option,
    plain,
    read,
    run_argument,
    text_option,
    within,
    write,
)
from lagwise.extras import require
from lagwise.process import Stopped, quick_imports
from lagwise.tables import counted

Run = Annotated[Path, run_argument("Folder of a trained run.")]


def generate(
    run: Run,
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
    chat: Annotated[
        bool, typer.Option("--chat", help="Answer the prompt as a user's message, by the chat template.")
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

    if chat and special:
        raise typer.BadParameter("give --chat or --special, not both: only a chat template has special tokens")
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
            chat=chat,
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


def predict(
    run: Run,
    source: Annotated[
        str | None,
        text_option(
            "A table (.csv, .tsv, .jsonl, .parquet, .npz), a folder of texts, sounds or images, `hub:NAME`.", "--data"
        ),
    ] = None,
    text: Annotated[list[str] | None, text_option("One row's text; may be given several times.")] = None,
    out: Annotated[
        Path | None,
        path_option(
            "A .csv file for the result, or, for sounds from sounds, a new folder.", show_default="standard output"
        ),
    ] = None,
) -> None:
    """Predict the classes, numbers, signals or next rows of new data.

    A classifier writes each row again, without the values of series, with the predicted class and the probability of
    every class; a regression, with the predicted number. A language model writes how well it predicts each text, in
    bits per byte. A forecaster writes the rows that follow a table of series over time. A model of signals writes a
    folder of sounds, or a line for each sample.

    lagwise predict runs/classify --data new.csv --out predicted.csv

    lagwise predict runs/forecast-tnn --data my.csv --out next.csv

    lagwise predict runs/tnn-cifar --data images/ --out predicted.csv

    lagwise predict runs/denoise --data noisy/ --out cleaned/

    lagwise predict runs/classify --text "I would see it again."

    Without `--data` and `--text`, every line of standard input is the text of a row:

    cat reviews.txt | lagwise predict runs/classify
    """
    if source == "-" or text == ["-"]:
        raise typer.BadParameter("leave out --data and --text to read lines of standard input")
    with quick_imports():
        from lagwise.data.writing import rows_as_csv
        from lagwise.runs import predict_run
        from lagwise.runs.evaluate import open_run
        from lagwise.runs.predict import check_output, save_predictions

    if source is not None and text:
        raise typer.BadParameter("give --data or --text, not both")
    task = open_run(run)[1]
    if out is not None:
        check_output(task, out, source)
    if out is not None and source is not None and out.exists() and Path(source).exists() and out.samefile(source):
        raise typer.BadParameter(f"--out would overwrite the rows of --data, {source!r}")
    if source is not None:
        rows = predict_run(run, source=source)
    else:
        columns = task.columns()
        if len(columns) != 1 or task.inputs != "tokens":
            raise ValueError(f"this run reads rows with {' and '.join(columns)}; give them with --data")
        if not text and sys.stdin.isatty():
            typer.echo("Reading one text per line from standard input; end with Ctrl-D.", err=True)
        lines = text or [line.rstrip("\n") for line in io.StringIO(read(sys.stdin))]
        rows = predict_run(run, [{columns[0]: line} for line in lines], progress=False)
    if out is None:
        write(rows_as_csv(task.table(rows)))
        return
    save_predictions(task, rows, out)
    typer.echo(f"{counted(len(rows), 'row')}: {plain(str(out))}", err=True)


def embed(
    run: Annotated[Path, run_argument("Folder of a language model, an encoder or another model of text.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES...",
            help="Texts: files (.txt and any other text, .jsonl and .parquet with `text`, FASTA), folders, or `-`.",
        ),
    ],
    out: Annotated[Path, path_option("The .parquet file of vectors.")] = Path("vectors.parquet"),
    pooling: Annotated[
        str, typer.Option(callback=one_of("mean", "last"), help="`mean` of the hidden states, or the `last`.")
    ] = "mean",
    window: Annotated[
        int | None,
        number_option("Tokens of a window, each with a vector.", at_least(1), show_default="a vector for each text"),
    ] = None,
    stride: Annotated[
        int | None, number_option("Tokens from a window to the next.", at_least(1), show_default="those of a window")
    ] = None,
) -> None:
    """Write a vector for each text, of any length: a book, a genome, a log.

    lagwise embed runs/best-lm books/*.txt --out books.parquet

    lagwise embed runs/encoder notes.jsonl --window 512 --stride 256 --out passages.parquet

    lagwise embed runs/hyena genome.fa.gz --out genome.parquet

    journalctl | lagwise embed runs/best-lm - --window 4096 --out log.parquet

    A language model reads a text in chunks, each from the states after the one before: the vector is that of the whole,
    and memory does not grow with the text. An encoder reads windows of 8,192 tokens that overlap by half. A vector is
    of length 1, so products of vectors are cosines. The table has the columns file, document, id, start, tokens and
    vector.

    Stopped, the same command goes on: nothing is lost, and nothing is written twice.
    """
    with quick_imports():
        from lagwise.runs import embed_run

    if "-" in files and sys.stdin.isatty():
        typer.echo("Reading one text from standard input; end with Ctrl-D.", err=True)
    try:
        counts = embed_run(run, files, out, pooling=pooling, window=window, stride=stride)
    except KeyboardInterrupt:
        typer.echo("\nStopped. The same command goes on.", err=True)
        raise
    if counts["empty"]:
        typer.echo(f"Without a vector: {counted(counts['empty'], 'empty text')}", err=True)
    earlier = f", {counts['earlier']:,} of them made before" if counts["earlier"] else ""
    typer.echo(f"{counted(counts['vectors'], 'vector')}{earlier}: {plain(shlex.quote(str(out)))}")


def watch(
    run: Annotated[Path, run_argument("Folder of a model trained on such lines, or on such samples.")],
    file: Annotated[
        Path | None,
        typer.Argument(parser=existing_file, metavar="[FILE]", help="Follow this file; else read standard input."),
    ] = None,
    alarms: Annotated[float, number_option("Alarms per usual line, at most.", within(0, 1, brackets="()"))] = 1e-3,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            parser=existing_file, help="Held-out lines for the threshold.", show_default="the run's test text"
        ),
    ] = None,
    state: Annotated[Path | None, path_option("A file to continue from, if it exists, and to keep up to date.")] = None,
    by: Annotated[str | None, text_option("A field of JSON lines, each value of which has a stream.")] = None,
    learn: Annotated[
        float | None,
        number_option("Learn from lines after their scores, at this rate, such as 1e-4.", within(0, 1, brackets="(]")),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines.")] = False,
) -> None:
    """Show how surprising each line is: its bits per byte, a threshold, and ALARM where it is exceeded. By a model that
    predicts a signal, a line is a sample, and its score the distance from its prediction in standard deviations.

    Each line is read after all lines before it, in constant memory. The threshold is that of held-out lines: of others
    like them, at most the asked share exceeds it. A file is followed until Ctrl-C, and from the state on if there is
    one, whatever stopped the command before.

    lagwise train --data yesterday.log --out runs/log

    lagwise watch runs/log < today.log

    lagwise watch runs/log /var/log/syslog --state syslog.state --alarms 1e-4

    lagwise train --recipe denoise --data sensor.csv --out runs/next task.ahead=1 task.stride=1
    task.delay=0 task.window=0 task.loss=mse

    read-sensor | lagwise watch runs/next
    """
    with quick_imports():
        from lagwise.runs.watch import Watch, watch_run, written

    def show(rows: list[dict[str, Any]]) -> None:
        write("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows) if as_json else written(rows))

    watched = Watch(run, alarms=alarms, calibrate=calibrate, by=by, learn=learn, state=state, progress=True)
    source = sys.stdin.fileno() if file is None else file
    try:
        watch_run(watched, source, show, state=state, report=lambda line: typer.echo(plain(line), err=True))
    except Stopped as stop:
        raise typer.Exit(128 + stop.number) from None  # as a shell reports it


def plot(run: Run) -> None:
    """Write a report of a run, with its plots, results and learned kernels: RUN/report.html, a single file that needs
    no network. Its plots are also in RUN/plots:

        lagwise plot runs/best-lm

    The learning curves of several runs are in their logs for TensorBoard:

        tensorboard --logdir runs
    """
    require("plot", "a report")
    from lagwise.analysis.report import plot_run

    for file in plot_run(run):
        typer.echo(plain(str(file)))


def serve(
    run: Annotated[Path, run_argument("Folder of a language model or an encoder.")],
    host: Annotated[str, text_option("Address to listen on; 0.0.0.0 means all interfaces.")] = "127.0.0.1",
    port: Annotated[int, number_option("Port to listen on.", within(1, 65535, brackets="[]"))] = 8000,
    rows: Annotated[int, number_option("Maximum requests processed at the same time.", at_least(1))] = 32,
    queue: Annotated[int, number_option("Maximum waiting requests; further ones get status 429.", at_least(0))] = 128,
    max_tokens: Annotated[int, number_option("Maximum tokens per answer.", at_least(1))] = 4096,
    timeout: Annotated[float, number_option("Maximum seconds per answer.", at_least(0.001))] = 300,
    max_body: Annotated[int, number_option("Maximum bytes per request.", at_least(1))] = 2**20,
    api_key: Annotated[str | None, text_option("Key that clients must send, if any.", envvar="LAGWISE_API_KEY")] = None,
    cors: Annotated[
        list[str] | None,
        text_option(
            "Origin whose web pages may ask this server, such as http://localhost:3000, or `*` for any. May be "
            "given several times.",
            show_default="none",
        ),
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="Compile the model's step first, which takes 15 seconds to a minute, once per model. By default, a "
            "cached step is used if there is one.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a model with OpenAI's API: completions and chat of a language model, with streaming and continuous
    batching, and embeddings of a language model or an encoder.

    lagwise serve runs/best-lm

    curl http://127.0.0.1:8000/v1/completions -H "Content-Type: application/json" -d '{"model": "best-lm", "prompt":
    "def "}'

    The model is named after its folder. Ctrl-C stops the server.

    A compiled step generates tokens several times as fast. Compilation takes 15 seconds to a minute:

    lagwise serve runs/best-lm --compile
    """
    require("serve", "serving", "fastapi", "uvicorn", "jinja2")  # before the model is loaded
    import uvicorn

    _check_address(host, port)
    from lagwise.models import LagwiseForCausalLM
    from lagwise.models.loading import default_device, load_model
    from lagwise.serving.app import make_app
    from lagwise.serving.embedding import Embedder
    from lagwise.serving.scheduler import Scheduler

    model, tokenizer = load_model(run, device="cpu" if compile else default_device())
    if tokenizer is None:
        raise ValueError(f"{str(run)!r} reads {model.config.input_name}, not text; see 'lagwise predict'")
    embedder, scheduler = Embedder(model, tokenizer, queue=rows + queue, timeout=timeout), None
    if isinstance(model, LagwiseForCausalLM):
        if compile is not False:
            with nullcontext() if compile else suppress(ValueError, RuntimeError, OSError):
                model.compile_step(None, cached=not compile, report=lambda line: typer.echo(line, err=True))
        scheduler = Scheduler(model, tokenizer, rows=rows, queue=queue, max_tokens=max_tokens, timeout=timeout)
    elif compile:
        raise ValueError(f"--compile is for language models; {str(run)!r} holds a {type(model).__name__}")
    name = run.resolve().name
    shown = f"[{host}]" if ":" in host else host
    kind = "" if scheduler else "the embeddings of "
    typer.echo(plain(f"Serving {kind}{name!r} at http://{shown}:{port}/v1 (Ctrl-C to stop)"))
    app = make_app(scheduler, name, embedder=embedder, max_body=max_body, api_key=api_key, origins=cors or ())
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=5)


def _check_address(host: str, port: int) -> None:
    """Raise ValueError, before the model is loaded, if the server cannot listen there."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as error:
        raise ValueError(
            f"the server cannot listen on port {port} of {host!r} ({error.strerror or error}); choose another --port "
            "above 1023, or an address of this machine with --host"
        ) from error


def export(
    run: Annotated[Path, run_argument("Folder of a trained model.")],
    format: Annotated[
        str,
        typer.Option(
            callback=one_of("onnx", "pt2", "c", "executorch"),
            help="`onnx`, `pt2` for torch.export.load, `c` for C99 code without allocation, or `executorch`.",
        ),
    ] = "onnx",
    what: Annotated[
        str | None,
        typer.Option(
            callback=one_of("forward", "step"),
            help="`step`: one token of a language model or step of a signal, with its state; `forward`: whole rows.",
            show_default="step of language models and of c and executorch, forward of others",
        ),
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(
            callback=one_of("int8"),
            help="`int8`: products of weights in 8-bit integers, of a step of a signal. Ranges are those of training "
            "rows; the change of the score on held-out data is printed.",
        ),
    ] = None,
    out: Annotated[Path | None, path_option("Folder for the files.", show_default="RUN-export")] = None,
) -> None:
    """Write a model to a file that runs without lagwise.

    The tokenizer is written to the same folder. The file's outputs are compared with the model's, and the file is
    removed if they differ.

    lagwise export runs/mega-lm

    lagwise export runs/best-lm --format pt2 --what forward

    lagwise export runs/classify

    A causal model of signals runs on a microcontroller, a step at a time, while it is recorded:

    lagwise export runs/chip --format c --quantize int8

    A kernel of finite support streams with a ring buffer, which is slower than a state space. A kernel of infinite
    support must be converted to a state space first:

    lagwise convert runs/best-lm

    lagwise export runs/best-lm-recurrent
    """
    if format in ("onnx", "c"):
        require("export", "an ONNX file")  # before PyTorch is imported, which takes seconds
    from lagwise.runs import export_run

    result = export_run(run, out, format=format, what=what, quantize=quantize)
    if "int8" in result:
        score = result["int8"]
        typer.echo(f"{score['metric']}: {score['int8']:.4g} in 8-bit integers, {score['float']:.4g} in float32.")
    if format == "c":
        from lagwise.models.c_code import size_lines

        for line in size_lines(result):
            typer.echo(line)
    elif "difference" in result:
        typer.echo(
            f"Outputs of {result['checked_tokens']:,} random inputs differ by {result['difference']:.1e} at most."
        )
    typer.echo(plain(f"Written: {result['out']} ({result['bytes'] / 2**20:,.1f} MB)"))
