"""A corpus of malformed input: recipes, overrides, options, data files and run folders.

A case is a name and a function of (a folder to write to, a copy of a trained run) that must raise an error of one line.
"""

from __future__ import annotations

import inspect
import lzma
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from damaged_runs import Case, run_folders

from lagwise.blocks import BLOCKS, CHANNEL_MIXERS
from lagwise.data import load_tokenizer, open_source, prepare
from lagwise.data.options import DataOptions
from lagwise.kernels import KERNELS
from lagwise.mixers import MIXERS
from lagwise.models.configuration import field_types
from lagwise.models.memory import check_step_memory
from lagwise.tables import build
from lagwise.tasks import TASKS
from lagwise.training import check_recipe, load_recipe
from lagwise.training.model import model_config
from lagwise.training.recipe import TrainingOptions

# Values that are not of a type, as YAML text. Integers are fine as floats, and every type may be optional.
WRONG = {
    int: ("2.0", "1.5", "true", "many", ".nan", ".inf", "[1]", "{a: 1}", "1" + "0" * 30, "-1" + "0" * 30),
    float: ("true", "fast", ".nan", ".inf", "-.inf", "nan", "[1.0]", "{a: 1}", "1" + "0" * 400, "1e999"),
    str: ("1", "1.5", "true", "[a]", "{a: b}"),
    bool: ("1", "0.0", "foo", "[true]", "{}", "'true'"),
    dict: ("1", "text", "[]", "[1]", "true", "''", "{name: nonsense}", "{name: [1]}", "{name: {}}"),
    list: ("1", "text", "[1.5]", "[true]", "[x]", "{a: 1}", "[[1]]"),
}
HUGE = (10**6, 10**7, 10**9, 10**12, 10**18)


def wrong_values(kind: Any) -> tuple[str, ...]:
    """YAML texts of values that do not have this type."""
    members = [member for member in typing.get_args(kind) or (kind,) if member is not type(None)]
    if typing.get_origin(kind) in (list, dict, Sequence):
        members = [kind]
    kinds = {typing.get_origin(member) or member for member in members}
    kinds = {{Mapping: dict, Sequence: list}.get(member, member) for member in kinds}
    if kinds == {str, dict}:
        return ("1", "1.5", "true", "[]", "{}", "{name: 5}", "nonsense")
    if len(kinds) > 1 or not kinds & WRONG.keys():
        return ()
    return WRONG[kinds.pop()]


def overrides() -> Iterator[Case]:
    """Every field of a recipe with values of other types, and malformed overrides."""
    for section, cls in (("data", DataOptions), ("training", TrainingOptions)):
        for field, kind in typing.get_type_hints(cls).items():
            for value in wrong_values(kind):
                yield f"{section}.{field}={value[:40]}", _overridden(f"{section}.{field}={value}")
    for name, kind in field_types().items():
        for value in wrong_values(kind):
            if (name, value) != ("block", "{}"):
                yield f"model.{name}={value[:40]}", _overridden(f"model.{name}={value}")
    for text in (
        *("data", "data=", "data=5", "=5", ".=5", "model", "model=[]", "training..steps=5", "nothing.x=1", "x" * 5000),
        *("task.loss=foo", "task=5", "task={}", "task.name=nothing", "task.name=5", "data.loss=every"),
        *("data.source=''", "data.source='  '", "data.tokenizer=''"),
        *("model.model_type=gpt2", "model.hidden=5", "model.num_labels=3", "model.dtype=int8", "model.1=2"),
        *("training.steps=0", "training.steps=-5", "training.batch_size=0", "training.log_every=0", "data.length=0"),
        *("training.seed=-1", "training.seed=4294967296", "training.learning_rate=0", "training.learning_rate=-1"),
        *("training.beta1=1.0", "training.beta2=-0.1", "training.clip=-1", "training.schedule=steps"),
        *("training.precision=int8", "data.lengths=[0]", "data.lengths=[16, 8]", "data.evaluate_length=1"),
        *("training.steps=[", "training.steps={", "training.steps=&a *b", "training.steps=!!python/name:os.system"),
        *("training.steps=!!int ''", "training.clip=!!float ''", "training.seed=!!timestamp x"),
        *("training.gradient_checkpointing=!!bool 5", "model.block=!!set 5", "model.block=!!omap [1]"),
        *("training.steps=" + "[" * 1000, "model.block=" + "{a: " * 500, "training.steps=\0", "training.steps=!x"),
        *("training.learning_rate=" + "9" * 5000, "training.steps=" + "9" * 5000, "training.accumulate=3"),
        *("model.block.token_mixer.kernel.decay=.nan", "model.block.token_mixer.kernel.decay=2"),
        *("model.block.dropout=.nan", "model.block.dropout=1.5", "model.block.dropout=-0.5", "model.inputs=values"),
        *("model.position_embedding=learned", "model.max_position_embeddings=4", "model.norm={name: rms, x: 1}"),
    ):
        yield text[:60], _overridden(text)


def sizes() -> Iterator[Case]:
    """Sizes that exceed any memory."""
    for field in ("hidden_size", "num_hidden_layers", "vocab_size", "type_vocab_size"):
        for size in HUGE[1:]:
            yield f"model.{field}={size}", _overridden(f"model.{field}={size}")
    for size in HUGE[1:]:
        learned = ("model.position_embedding=learned", f"model.max_position_embeddings={size}")
        yield f"learned positions: {size}", _overridden(*learned, "model.hidden_size=4096", "model.block.dropout=0.1")
        yield f"training.batch_size={size}", _overridden(f"training.batch_size={size}", step=True)
        recall = {"name": "associative-recall", "step": True}
        yield f"recall of length {size}", _overridden(f"data.length={size}", **recall)
        yield f"data.vocab_size={size}", _overridden("data.tokenizer=bpe", f"data.vocab_size={size}")
        yield f"a BPE of {size}", lambda folder, run, n=size: load_tokenizer("bpe", vocab_size=n, texts=iter(["text"]))
    for size in HUGE[3:]:
        yield f"training.steps={size}", _overridden(f"training.steps={size}")
    for mixer, option in (
        *(("gtu", "expansion"), ("ema", "dimension"), ("attention", "heads"), ("chunked_attention", "heads")),
        *(("tcn", "depth"), ("tcn", "convolutions"), ("tcn", "kernel_size"), ("tcn", "dilation")),
    ):
        for size in HUGE[1:]:
            spec = f"{{name: {mixer}, {option}: {size}}}"
            yield f"{mixer}.{option}={size}", _overridden(f"model.block={{name: prenorm, token_mixer: {spec}}}")
    for kernel, option in (
        *(("rpe", "hidden"), ("rpe", "layers"), ("free", "max_length"), ("frequency", "hidden"), ("modal", "modes")),
        *(("frequency", "grid"), ("warped", "points"), ("warped", "filter_size"), ("ema", "dimension")),
    ):
        for size in HUGE[2:]:
            spec = f"{{name: gtu, kernel: {{name: {kernel}, {option}: {size}}}}}"
            yield f"{kernel}.{option}={size}", _overridden(f"model.block={{name: prenorm, token_mixer: {spec}}}")


def _overridden(*texts: str, name: str = "tnn-lm", step: bool = False) -> Callable[[Path, Path], object]:
    def check(folder: Path, run: Path) -> None:
        recipe = load_recipe(name, texts)
        task = check_recipe(recipe)
        if step:
            config = model_config(recipe, task, {"vocab_size": 8})
            rows, length = recipe.training.batch_size, recipe.data.length
            check_step_memory(task.head, config, rows, length, checkpointing=False)

    return check


def options() -> Iterator[Case]:
    """Every option of every component, with values of other types and out of range."""
    import yaml

    tables = {"block": BLOCKS, "mixer": MIXERS, "kernel": KERNELS, "channel mixer": CHANNEL_MIXERS, "task": TASKS}
    for what, table in tables.items():
        first: Any = DataOptions() if table is TASKS else 16
        for name, part in table.items():
            hints = typing.get_type_hints(part.__init__)
            signature = inspect.signature(part).parameters.values()
            context = {p.name: True for p in signature if p.name == "causal"}
            for parameter in signature:
                if parameter.kind is not parameter.KEYWORD_ONLY or parameter.name in context:
                    continue
                for text in wrong_values(hints[parameter.name]):
                    spec = {"name": name, parameter.name: yaml.safe_load(text)}
                    yield f"{what} {name} {parameter.name}={text[:40]}", _built(table, spec, first, what, context)
            yield f"{what} {name} nonsense", _built(table, {"name": name, "nonsense": 1}, first, what, context)


def _built(
    table: Any, spec: dict[str, Any], first: Any, what: str, context: dict[str, Any]
) -> Callable[[Path, Path], object]:
    return lambda folder, run: build(table, spec, first, what=what, **context)


def recipes() -> Iterator[Case]:
    """Files that are not recipes."""
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
    merges = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40))
    nested = [f"model:\n  {text.replace(chr(10), chr(10) + '  ')}".encode() for text in (bomb, merges)]
    contents = (
        *(b"[1, 2]", b"5", b"just words", b"model: [1]", b"data: null", b"model: [unclosed"),
        b"model:\n\thidden_size: 5",
        *(bytes(range(256)), "description: größe".encode("latin1"), b"\0" * 100, *nested, b"[" * 100_000),
        *(b"model: " + b"[" * 1000 + b"]" * 1000, b"model: " + b"{a: " * 1000 + b"1" + b"}" * 1000),
        *(b"model: &a {b: *a}", b"model: *nothing", b"description: " + b"x" * 2_000_000),
        *(b"model: [" + b"1, " * 20_000 + b"]", b"model: !!python/object/apply:os.system ['true']"),
        *(b"training: {steps: 2020-01-01}", b"model: {[1]: 2}", b"model: {1: 2}", b"model: {}\n---\nmodel: {}"),
        *(b"modell: {}", b"model: {block: []}", b"model: {block: {token_mixer: {name: gtu}}}"),
        *(b"model: {block: {name: chain, blocks: []}}", b"model: {block: {name: chain, blocks: [prenorm]}}"),
        b"model: {block: {name: chain, blocks: [{name: chain, blocks: [{name: prenorm}]}]}}",
    )

    def check(folder: Path, run: Path, content: bytes) -> None:
        (folder / "recipe.yaml").write_bytes(content)
        check_recipe(load_recipe(str(folder / "recipe.yaml")))

    for content in contents:
        yield f"recipe: {content[:40]!r}", lambda folder, run, c=content: check(folder, run, c)
    for name in ("", "tnn", "nothing.yaml", "~nosuchuser/recipe.yaml", "x" * 300, "../tnn-lm", "a\0.yaml"):
        yield f"recipe named {name[:40]!r}", lambda folder, run, n=name: load_recipe(n)


def data() -> Iterator[Case]:
    """Files and names that are not texts."""
    good = b"A line of text.\n" * 500
    deep = b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    contents: dict[str, bytes] = {
        "empty.txt": b"",
        "short.txt": b"ab",
        "binary.txt": bytes(range(256)) * 10,
        "latin1.txt": "größe\n".encode("latin1") * 100,
        "utf16-without-mark.txt": good.decode().encode("utf-16-le"),
        "utf32-without-mark.txt": good.decode().encode("utf-32-le"),
        "surrogates.txt": b"\xed\xa0\x80" * 100,
        "cut.txt": "ü".encode()[:1] * 50,
        "utf16.jsonl": ('{"text": "words"}\n' * 50).encode("utf-16"),
        "utf16-of-one-line.jsonl": '{"text": "words"}'.encode("utf-16"),
        "deep.jsonl": deep,
        "list.jsonl": b'["text"]\n',
        "number.jsonl": b"5\n",
        "null.jsonl": b"null\n",
        "no-text.jsonl": b'{"txt": "words"}\n',
        "text-is-null.jsonl": b'{"text": null}\n',
        "text-is-a-list.jsonl": b'{"text": ["words"]}\n',
        "text-is-a-number.jsonl": b'{"text": 5}\n',
        "surrogate.jsonl": b'{"text": "\\ud800"}\n',
        "cut.jsonl": b'{"text": "words"}\n{"text": "wo',
        "long-number.jsonl": b'{"text": ' + b"9" * 10_000 + b"}\n",
        "garbage.parquet": b"PAR1 not really",
        "empty.parquet": b"PAR1",
        "cut.txt.xz": lzma.compress(good)[:60],
        "text.txt.xz": good,
        "nothing.txt.xz": lzma.compress(b""),
        "short.jsonl": b'{"text": "a"}\n',
        "spaces.jsonl": b"\n\n\n",
    }

    def check(folder: Path, run: Path, name: str, content: bytes) -> None:
        (folder / name).write_bytes(content)
        prepare(str(folder / name), "bytes", cache=folder / "cache", progress=False)

    for name, content in contents.items():
        yield f"data: {name}", lambda folder, run, n=name, c=content: check(folder, run, n, c)
    for name in ("", "  ", "nowhere.txt", "~nosuchuser/text.txt", "x" * 300, "hub:", "a\0.txt", "/dev/null", "/proc"):
        yield f"data named {name[:40]!r}", lambda folder, run, n=name: prepare(n, cache=folder, progress=False)
    yield "data: an empty folder", lambda folder, run: open_source(str(folder))
    for name in ("", "gpt2", "nowhere", "~nosuchuser", "/dev/null", "."):
        yield (
            f"tokenizer named {name!r}",
            lambda folder, run, n=name: load_tokenizer(n) if n != "." else load_tokenizer(str(folder)),
        )
    tokenizers = {
        "tokenizer.json": (b"", b"[]", b"null", b"{}", b'{"model": 5}', b"[" * 100_000, bytes(range(256))),
        "merges.txt": (b"", b"a", bytes(range(256))),
    }

    def load(folder: Path, run: Path, file: str, content: bytes) -> None:
        (folder / file).write_bytes(content)
        (folder / "tokenizer_config.json").write_text("{}")
        load_tokenizer(str(folder))

    for file, contents_ in tokenizers.items():
        for content in contents_:
            yield (
                f"tokenizer: {file} is {content[:20]!r}",
                lambda folder, run, f=file, c=content: load(folder, run, f, c),
            )


def corpus() -> list[Case]:
    """All cases, with unique names."""
    kinds = (overrides, sizes, options, recipes, data, run_folders)
    cases = [case for kind in kinds for case in kind()]
    return [(f"{number}: {name}", check) for number, (name, check) in enumerate(cases)]


__all__ = ["Case", "corpus"]
