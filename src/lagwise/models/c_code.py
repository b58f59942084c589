"""Exported steps as C99 code without allocation, by emx-onnx-cgen, with a program that checks it."""

from __future__ import annotations

import importlib
import math
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch

from lagwise.compiler import find_compiler
from lagwise.files import one_line
from lagwise.models.export import INTEGER_TOLERANCE, TOLERANCE, ExportedStep, step_of, stream_example
from lagwise.tables import counted

_SECONDS = 600  # of the compiler and of the checked program
_LONGEST_MESSAGE = 200  # characters of another program's message
_VECTOR = 64  # steps of the test vector in main.c
_TYPES = {1: "float", 6: "int32_t", 7: "int64_t", 9: "_Bool", 11: "double"}  # of ONNX's element types
_BYTES = {"float": 4, "int32_t": 4, "int64_t": 8, "_Bool": 1, "double": 8}
_PRODUCTS = ("MatMul", "Gemm")


def export_c(
    model: Any, graph: Path, figures: Mapping[str, Any], title: str, notes: Sequence[str], integers: Path | None = None
) -> dict[str, Any]:
    """Write ``step.c``, ``step.h`` and ``main.c`` for a model's step, beside its ONNX file, which is removed. The code
    is checked with the C compiler of this machine, if it has one (`lagwise.compiler.find_compiler`). figures: those of
    `export_step`; title, notes: lines of the comment in ``step.h``; integers: the step in 8-bit integers, an ONNX file
    that is written instead, and compared with.

    Returns a dict of sizes in bytes (for this machine's processor, by ``-Os``), ``multiplications`` and ``samples`` of
    a step, and the largest ``difference``. ValueError if the generator refuses the step, or the compiled code gives
    other outputs.
    """
    step, limit = step_of(model), TOLERANCE
    given, outputs_given = stream_example(model, step)
    if integers is not None:
        run, limit = ExportedStep(integers, step.start(1)), INTEGER_TOLERANCE
        outputs_given = torch.stack([run(each).reshape(outputs_given.shape[1:]) for each in given])
    examples, expected = given.numpy(), outputs_given.numpy()
    limit *= float(np.abs(expected).max())
    folder, source = graph.parent, integers or graph
    onnx = importlib.import_module("onnx")
    proto = onnx.load(source)
    inputs, outputs = ([_declared(each) for each in part] for part in (proto.graph.input, proto.graph.output))
    (kind, _, input_shape), (_, _, output_shape) = inputs[0], outputs[0]
    states = [(kind, re.sub(r"\W", "_", name.replace("past.", "state_", 1)), shape) for kind, name, shape in inputs[1:]]
    generate(source, folder / "step.c")
    arguments = [_cast(f"const {kind}", input_shape, "inputs"), *(f"past->{name}" for _, name, _ in states)]
    arguments += [_cast("float", output_shape, "outputs"), *(f"present->{name}" for _, name, _ in states)]
    wrapper = _template("step.c", kind=kind, arguments=", ".join(arguments))
    with open(folder / "step.c", "a", encoding="utf-8") as file:
        file.write(f"\n{wrapper}")
    vector = {"given": _numbers(examples[:_VECTOR]), "expected": _numbers(expected[:_VECTOR])}
    text = _template("main.c", steps=min(_VECTOR, len(examples)), limit=f"{limit:.3e}", kind=kind, **vector)
    (folder / "main.c").write_text(text, encoding="utf-8")
    sizes: dict[str, Any] = {
        "states": figures["states"],
        "checked_tokens": figures["checked_tokens"],
        "state_bytes": 2 * sum(_BYTES[kind] * math.prod(shape) for kind, _, shape in states) + 8,
        "constant_bytes": sum(onnx.numpy_helper.to_array(each).nbytes for each in proto.graph.initializer),
        "samples": input_shape[0],
        "multiplications": multiplications(graph),
    }

    def write_header(more: Sequence[str]) -> None:
        header = _template(
            "step.h",
            title=title,
            notes="\n".join(f" * {line}".rstrip() for line in (*notes, *more)),
            inputs=math.prod(input_shape),
            inputs_are=" x ".join(map(str, input_shape)),
            outputs=math.prod(output_shape),
            outputs_are=" x ".join(map(str, output_shape)),
            tensors="\n".join(f"    {kind} {name}{_axes(shape)};" for kind, name, shape in states),
            kind=kind,
        )
        (folder / "step.h").write_text(header, encoding="utf-8")

    write_header([])
    compiler = find_compiler()
    if compiler is not None:
        sizes |= _checked(compiler, folder, examples, expected, limit)
    write_header(["", *size_lines(sizes)])
    graph.unlink()
    return sizes


def size_lines(figures: dict[str, Any]) -> list[str]:
    """The sizes of generated code, for people."""
    count, inputs = figures["multiplications"], figures["samples"]
    lines = [f"Multiplications: {count:,} a step of {counted(inputs, 'sample')}, {count / inputs:,.0f} a sample."]
    if "flash_bytes" in figures:
        lines.append(f"Flash: {figures['flash_bytes']:,} bytes (-Os, processor of the exporting machine).")
    ram = f"RAM: {figures['state_bytes']:,} bytes for the state of each stream"
    lines.append(f"{ram}, {figures['stack_bytes']:,} of stack." if "stack_bytes" in figures else f"{ram}, and a stack.")
    if "difference" in figures:
        lines.append(f"Compiled and compared with the model: the largest difference is {figures['difference']:.1e}.")
    return lines


def multiplications(path: Path) -> int:
    """Count multiplications and divisions in an ONNX file of fixed shapes; not powers, roots and activations."""
    onnx = importlib.import_module("onnx")
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    shapes = {each.name: _declared(each)[2] for each in (*graph.input, *graph.value_info, *graph.output)}
    shapes |= {each.name: tuple(each.dims) for each in graph.initializer}
    total = 0
    for node in graph.node:
        size = math.prod(shapes.get(node.output[0], (0,)))
        if node.op_type in _PRODUCTS:
            total += size * shapes[node.input[0]][-1]
        elif node.op_type == "Conv":
            total += size * math.prod(shapes[node.input[1]][1:])
        elif node.op_type in ("Mul", "Div"):
            total += size
    return total


def _template(name: str, **values: Any) -> str:
    """A file of the folder ``c`` with these values."""
    return Template(Path(__file__).with_name("c").joinpath(name).read_text(encoding="utf-8")).substitute(values)


def generate(graph: Path, code: Path) -> None:
    """Write C code for an ONNX file. ValueError if the generator refuses it."""
    compiler, onnx = (importlib.import_module(name) for name in ("emx_onnx_cgen.compiler", "onnx"))
    no_files = {"large_temp_threshold_bytes": 0, "large_weight_threshold": 0}  # nor allocation
    options = compiler.CompilerOptions(model_name="step_graph", **no_files)
    try:
        text = compiler.Compiler(options).compile(onnx.load(graph))
    except Exception as error:  # the generator raises many types
        raise ValueError(f"the C generator does not take this model ({one_line(error)})") from error
    code.write_text(text, encoding="utf-8")


def _checked(
    compiler: Sequence[str], folder: Path, examples: np.ndarray, expected: np.ndarray, limit: float
) -> dict[str, Any]:
    program, object_file = folder.resolve() / "check", folder / "step.o"
    flags = ["-std=c99", "-Os", "-fstack-usage"]
    try:
        _run([*compiler, *flags, "-c", "step.c", "-o", object_file.name], folder)
        _run([*compiler, *flags[:2], object_file.name, "main.c", "-lm", "-o", program.name], folder)
        _run([str(program)], folder)
        raw = _run([str(program), "-"], folder, examples.tobytes())
        outputs = np.frombuffer(raw, dtype=np.float32).reshape(expected.shape)
        difference = float(np.abs(outputs - expected).max())
        if not difference <= limit:
            raise ValueError(f"outputs of the C code differ by {difference:.1e} from the model's")
        figures: dict[str, Any] = {"difference": difference}
        reports = [path.read_text(encoding="utf-8") for path in folder.glob("*.su")]
        usage = [line.split("\t") for report in reports for line in report.splitlines()]
        frames = {location.rpartition(":")[2]: int(size) for location, size, _ in usage}
        if {"step", "step_graph"} <= frames.keys():
            inner = [size for name, size in frames.items() if name not in ("step", "step_graph")]
            figures["stack_bytes"] = frames["step"] + frames["step_graph"] + max(inner, default=0)
        try:
            size = _run(["size", object_file.name], folder).decode().splitlines()[1].split()
            figures["flash_bytes"] = int(size[0]) + int(size[1])
        except (OSError, ValueError, IndexError):  # binutils' program is missing, or another one has its name
            pass
        return figures
    finally:
        for path in (program, object_file, *folder.glob("*.su")):
            path.unlink(missing_ok=True)


def _run(command: Sequence[str], folder: Path, stdin: bytes = b"") -> bytes:
    done = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, timeout=_SECONDS)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())[:_LONGEST_MESSAGE]
        raise ValueError(f"{Path(command[0]).name} failed for the generated C code ({said})")
    return done.stdout


def _declared(value: Any) -> tuple[str, str, tuple[int, ...]]:
    tensor = value.type.tensor_type
    return _TYPES.get(tensor.elem_type, ""), value.name, tuple(each.dim_value for each in tensor.shape.dim)


def _axes(shape: Sequence[int]) -> str:
    return "".join(f"[{size}]" for size in shape)


def _cast(kind: str, shape: Sequence[int], name: str) -> str:
    return f"({kind} (*){_axes(shape[1:])}){name}" if len(shape) > 1 else name


def _numbers(values: np.ndarray) -> str:
    flat = values.reshape(-1)
    if flat.dtype.kind == "i":
        return ",\n".join(map(str, flat.tolist()))
    return ",\n".join("NAN" if np.isnan(value) else f"{float(value).hex()}f" for value in flat)
