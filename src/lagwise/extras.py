"""The optional packages, the extras that install them, and a clear error if one is missing."""

from __future__ import annotations

import importlib.util

#: The modules that each extra of pyproject.toml adds for use by lagwise itself. Where several extras add a module, the
#: first is suggested.
EXTRAS = {
    "train": ("accelerate", "datasets", "pyarrow", "sklearn", "scipy", "soundfile", "tensorboardX"),
    "plot": ("matplotlib", "jinja2"),
    "forecast": ("matplotlib", "jinja2", "sklearn", "scipy", "pandas", "pyarrow", "dateparser"),
    "vision": ("PIL", "torchvision"),
    "signals": ("wfdb",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "chip": ("onnx", "onnxscript", "onnxruntime", "emx_onnx_cgen"),
    "executorch": ("executorch",),
    "titan": ("torchtitan", "accelerate"),
    "serve": ("fastapi", "uvicorn", "jinja2", "openai"),
}
PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow", "emx_onnx_cgen": "emx-onnx-cgen"}
_OPTIONAL = ("tensorboardX",)  # used if installed


def install(extra: str) -> str:
    """Say how to install an extra, for the end of a message."""
    return f"install lagwise[{extra}] (in a clone of lagwise: pip install '.[{extra}]')"


def require(extra: str, feature: str, *modules: str) -> None:
    """Raise ImportError, before long work starts, if one of these modules is missing, by default any of an extra's.

    feature: What needs them, as the subject of the message.
    """
    needed = modules or [name for name in EXTRAS[extra] if name not in _OPTIONAL]
    if missing := [PACKAGES.get(name, name) for name in needed if importlib.util.find_spec(name) is None]:
        listed = " and ".join([*([", ".join(missing[:-1])] if missing[1:] else []), missing[-1]])
        raise ImportError(f"{feature} needs {listed}: {install(extra)}")


def explained(error: ModuleNotFoundError, extra: str | None = None) -> ImportError:
    """Complete an error by the extra that has the missing module, if any: ``extra``, or else the first."""
    name = (error.name or "").partition(".")[0]
    candidates = [each for each, modules in EXTRAS.items() if name in modules]
    if not candidates:
        return error
    suggested = extra if extra in candidates else candidates[0]
    return ImportError(f"{PACKAGES.get(name, name)} is missing: {install(suggested)}", name=name)
