"""Replace the lag kernels of a trained model by state spaces: constant memory and time per token."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lagwise.kernels import KERNELS
from lagwise.mixers import ToeplitzMixer
from lagwise.mixers.ski import CausalSKI
from lagwise.models.layer import require_loaded
from lagwise.models.sharded import whole_model
from lagwise.ops import Layout, Reduction, reduce_taps
from lagwise.progress import progress_bar
from lagwise.tables import check_integer

CONVERSION_FILE = "conversion.json"  # marks the folder of a converted run
_ENDLESS_LAGS = 4096  # lags of a kernel of infinite support that are converted
# Default kernel of the causal mixers that have one.
KERNEL_MIXERS = {"toeplitz": "rpe", "gtu": "rpe", "hyena": "hyena", "gss": "dss", "toeplitz_heads": "free"}


def recurrent_form(
    model: Any,
    tolerance: float = 1e-3,
    *,
    lags: int = _ENDLESS_LAGS,
    max_order: int | None = None,
    progress: bool = True,
) -> tuple[Any, dict[str, Reduction]]:
    """Replace every lag kernel of a model by the sum of damped oscillations that `reduce_taps` finds for it.

    Kernels run by ``engine="ski"`` are converted as SKI approximates them: its matrix is not exactly constant along a
    diagonal, so the mean over a cell is used.

    Args:
        model: A causal model. If its weights are divided between processes, all call this, and each gets the result.
        tolerance: Relative to each channel's gain, as in `reduce_taps`.
        lags: A kernel that never decays is cut after this many lags.
        max_order: Maximum number of states per channel, as in `reduce_taps`.
        progress: Whether to show a progress bar.

    Returns:
        A new model in the dtype and on the device of the old one, whose configuration has ``kernel: {name: modal,
        modes: ...}`` (as many modes as the largest channel of all layers needs), and the reductions by the names of
        their mixers.

    Raises:
        ValueError: If the model is not causal, has no lag kernel to replace, or a kernel cannot be reduced.

    >>> from lagwise import LagwiseConfig, LagwiseForCausalLM
    >>> config = LagwiseConfig(vocab_size=10, hidden_size=4, num_hidden_layers=1)
    >>> small, reductions = recurrent_form(LagwiseForCausalLM(config).eval(), 0.01, progress=False)
    >>> small.config.block["token_mixer"]["kernel"]["name"]
    'modal'
    """
    check_integer("lags", lags)
    require_loaded(model, "conversion")
    model = whole_model(model)
    mixers = kernels_to_convert(model)
    reductions = {}
    for name, mixer in progress_bar(mixers.items(), desc="reducing kernels", unit="layer", show=progress):
        try:
            reductions[name] = reduce_taps(effective_taps(mixer, lags), tolerance, max_order=max_order)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    config = copy.deepcopy(model.config)
    modes = max(reduction.modes.poles.shape[1] for reduction in reductions.values())
    config.block = _with_kernel(config.block or {"name": "prenorm"}, {"name": "modal", "modes": modes})
    converted = type(model)(config).to(device=model.device, dtype=model.dtype)
    kernels = tuple(f"{name}.kernel." for name in mixers)
    weights = {key: value for key, value in model.state_dict().items() if not key.startswith(kernels)}
    missing, unexpected = converted.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert all(key.startswith(kernels) for key in missing), missing
    for name, reduction in reductions.items():
        mixer = converted.get_submodule(name)
        assert isinstance(mixer, ToeplitzMixer)
        mixer.kernel.load_modes(reduction.modes)  # type: ignore[operator]
    if getattr(model, "generation_config", None) is not None:
        converted.generation_config = copy.deepcopy(model.generation_config)
    return converted.train(model.training), reductions


def kernels_to_convert(model: Any) -> dict[str, ToeplitzMixer]:
    """The mixers of a causal model, by name, whose lag kernel is no state space yet. ValueError if there are none."""
    if not model.config.causal:
        raise ValueError("only causal models stream; this one has causal=False")
    mixers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, ToeplitzMixer) and not module.kernel.recurrent
    }
    if not mixers:
        raise ValueError(
            "this model has no lag kernel to convert: moving averages, dilated convolutions, attention in chunks and "
            "converted kernels stream in constant memory as they are"
        )
    return mixers


@torch.no_grad()
def effective_taps(mixer: ToeplitzMixer, lags: int) -> Tensor:
    """Return taps ``(channels, n)`` that a causal mixer applies; ``lags`` of them if its support is infinite."""
    kernel = mixer.kernel
    n = kernel.support or lags
    if not isinstance(mixer.ski, CausalSKI):
        return kernel.taps(n)
    cell = mixer.ski.plan(kernel).spacing
    parameter = next(kernel.parameters())
    impulses = torch.zeros(cell, n + cell, mixer.channels, dtype=kernel.precision(parameter), device=parameter.device)
    impulses[torch.arange(cell), torch.arange(cell)] = 1
    answers, _ = mixer.mix(impulses, None, Layout())
    return torch.stack([answer[i : i + n] for i, answer in enumerate(answers)]).mean(0).t()


def _with_kernel(spec: Mapping[str, Any], kernel: Mapping[str, Any]) -> dict[str, Any]:
    """A block's spec with this kernel in every mixer whose kernel is no state space yet."""
    if default := KERNEL_MIXERS.get(spec.get("name", "")):
        if KERNELS[(spec.get("kernel") or {}).get("name", default)].recurrent:
            return dict(spec)
        return {**{key: value for key, value in spec.items() if key != "engine"}, "kernel": dict(kernel)}
    spec = dict(spec)
    if spec.get("name") == "prenorm" and spec.get("token_mixer") is None:
        spec["token_mixer"] = {"name": "gtu"}  # the default token mixer
    for key, value in spec.items():
        if isinstance(value, Mapping):
            spec[key] = _with_kernel(value, kernel)
        elif isinstance(value, list | tuple):
            spec[key] = [_with_kernel(v, kernel) if isinstance(v, Mapping) else v for v in value]
    return spec
