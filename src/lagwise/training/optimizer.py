"""Optimizers: AdamW, and Muon for the matrices of linear layers. Tables of n-grams are updated by rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from transformers import PreTrainedModel

from lagwise.data.options import AUTO
from lagwise.models.ngrams import ContextEmbedding
from lagwise.process import group_size
from lagwise.training.machine import bfloat16_is_fast, of_first_process
from lagwise.training.recipe import TrainingOptions

_MOMENTUM, _ORTHOGONAL_STEPS = 0.95, 5
_adamw_step = getattr(torch.optim.AdamW.step, "__wrapped__", torch.optim.AdamW.step)  # without hooks, which run once
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan et al.: steepest at zero, so that small values grow quickly


def make_optimizer(model: PreTrainedModel, training: TrainingOptions) -> torch.optim.Optimizer:
    """Make the optimizer of a recipe, over the model's parameters."""
    groups = parameter_groups(model, training.weight_decay)
    if training.optimizer == "muon":
        groups = with_matrices(groups, model)
    kind = Muon if training.optimizer == "muon" else AdamW
    betas = (training.beta1, training.beta2)
    return kind(groups, lr=training.learning_rate, betas=betas, eps=training.epsilon, fused=True)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Make AdamW groups: weight decay applies to matrices and taps, but not to biases, norms, embeddings and parameters
    that the class of a module names ``undecayed``."""
    trained = [p for p in model.parameters() if p.requires_grad]
    spared = {id(getattr(m, name)) for m in model.modules() for name in getattr(m, "undecayed", ())}
    spared |= {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    decayed = [p for p in trained if p.dim() >= 2 and id(p) not in spared]
    chosen = {id(p) for p in decayed}
    rest = [p for p in trained if id(p) not in chosen]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def with_matrices(groups: list[dict[str, Any]], model: PreTrainedModel) -> list[dict[str, Any]]:
    """Split groups so that the weights of the linear layers in a model's blocks have groups with a ``momentum``.
    Kernels and their networks stay in groups without one: their parameters are no maps between channels."""
    backbone: Any = model.base_model
    linear = {id(m.weight) for m in backbone.layers.modules() if isinstance(m, nn.Linear)}
    parted = []
    for group in groups:
        matrices = [p for p in group["params"] if id(p) in linear]
        rest = [p for p in group["params"] if id(p) not in linear]
        parted += [{**group, "params": matrices, "momentum": _MOMENTUM}, {**group, "params": rest}]
    return [group for group in parted if group["params"]]


@contextmanager
def sparse_tables(model: nn.Module, training: TrainingOptions) -> Iterator[None]:
    """Give tables of n-grams and matches sparse gradients within the block, on a CPU in one process without
    `torch.compile`: a step reads some hundredth of their rows, and would write zeros and moments for all of them."""
    tables = [module.table for module in model.modules() if isinstance(module, ContextEmbedding)]
    compiled = training.compile not in (False, AUTO)
    if group_size() > 1 or compiled or any(table.weight.device.type != "cpu" for table in tables):
        tables = []
    for table in tables:
        table.sparse = True
    try:
        yield
    finally:
        for table in tables:
            table.sparse = False


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_`, also for sparse gradients."""
    gradients = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            gradients.append(parameter.grad.values())
        elif parameter.grad is not None:
            gradients.append(parameter.grad)
    norm = get_total_norm(gradients)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return norm


class AdamW(torch.optim.AdamW):
    """AdamW, which updates the rows of a sparse gradient alone, without momentum.

    Formula, for the rows that a step has read: ``v <- beta2 * v + (1 - beta2) * g**2`` and
    ``w <- w - lr * g / (sqrt(v / (1 - beta2**step)) + eps)``. AdamW would go on to change the other rows by their
    momentum, which moves a row that is read once about as far in all: by 7.8 learning rates instead of 7.1, where beta1
    is 0.9 and beta2 is 0.98. With its momentum but without that, rare rows would learn a tenth of it.

    Sparse gradients exclude weight decay and ``amsgrad``. A step removes them.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        _adamw_step(self)  # passes over parameters without a gradient
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        for table in group["params"]:
            if table.grad is not None and table.grad.is_sparse:
                self._step_rows(table, table.grad.coalesce(), group)

    def _step_rows(self, table: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[table]
        rows, values = gradient.indices()[0], gradient.values()
        if not state:
            # The mean stays zero; a run that goes on with dense gradients, on a GPU, needs it.
            state |= {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(table),
                "exp_avg_sq": torch.zeros_like(table),
            }
        state["step"] += 1
        beta2 = group["betas"][1]
        square = state["exp_avg_sq"].index_select(0, rows).mul_(beta2).addcmul_(values, values, value=1 - beta2)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        size = square.div_(1 - beta2 ** state["step"].item()).sqrt_().add_(group["eps"])
        table.index_add_(0, rows, values / size, alpha=-float(group["lr"]))
        table.grad = None


class Muon(AdamW):
    """Muon for groups with a ``momentum``, and AdamW for the others.

    Formula: ``m <- momentum * m + (1 - momentum) * g``, then
    ``w <- (1 - lr * weight_decay) * w - lr * 0.2 * max(rows, columns)**0.5 * orthogonal(u)`` where
    ``u = (1 - momentum) * g + momentum * m`` is Nesterov's step. The factor gives updates the size of AdamW's, so one
    learning rate is for both.

    Products are in bfloat16 where they are faster in it, as published, otherwise in float32. `torch.optim.Muon` always
    takes bfloat16, which takes twice the time on a CPU without instructions for it. With several processes, the first
    decides for all when they make their optimizers.

    A step removes the gradients of the matrices.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; the factor and the decay:
    Liu et al. 2025, "Muon is Scalable for LLM Training", eq. 4.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._step_supports_amp_scaling = False  # a GradScaler has to scale the gradients back itself
        self._products = torch.bfloat16 if of_first_process(bfloat16_is_fast()) else torch.float32

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_products": self._products}  # for copies

    def _step_group(self, group: dict[str, Any]) -> None:
        if "momentum" in group:
            self._step_matrices(group)
        else:
            super()._step_group(group)

    def _step_matrices(self, group: dict[str, Any]) -> None:
        rate, momentum = float(group["lr"]), group["momentum"]
        for matrix in group["params"]:
            if matrix.grad is None:
                continue
            gradient, state = matrix.grad, self.state[matrix]
            if not state:
                state["step"] = torch.zeros(())  # AdamW's loading expects one of every state
                state["momentum_buffer"] = torch.zeros_like(matrix)
            state["step"] += 1
            mean = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            update = orthogonal(gradient.lerp(mean, momentum), self._products)
            matrix.mul_(1 - rate * group["weight_decay"])
            matrix.add_(update, alpha=-rate * 0.2 * max(matrix.shape) ** 0.5)
            matrix.grad = None


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute a matrix with the singular vectors of ``matrix`` and singular values between about 0.7 and 1.2.

    Formula: five steps ``x <- a x + b (x x') x + c (x x')**2 x`` in ``dtype``, from ``matrix`` over its norm. Singular
    values far below the norm may stay smaller."""
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix.to(dtype) if wide else matrix.to(dtype).T
    x = x / x.norm().clamp(min=1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ORTHOGONAL_STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.T).to(matrix.dtype)
