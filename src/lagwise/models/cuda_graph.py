"""A streaming step as a CUDA graph: the host launches one graph per token, not every operation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lagwise.models.heads import VocabularyHead
from lagwise.models.step import InPlace, InPlaceStep, Run, StreamingStep
from lagwise.ops.host import host_knows

_WARMUP = 2  # runs before a capture, in which kernels are compiled, and workspaces and tables are allocated
_CAPTURE = 4  # time of a capture in tokens


class GraphStep(InPlaceStep):
    """The step on a CUDA device, captured for every stream on that stream's own state.

    A graph reads and writes the addresses of its capture: of the stream's token and state, which are allocated once for
    a stream, and of the weights, which must not change while it runs. For any number of rows, the graph is captured
    once the rows have stayed the same for as many tokens as a capture takes, so that rows that come and go cost at most
    that much again.
    """

    refused = False  #: whether a capture has failed

    def runner(self, state: list[Tensor]) -> Run:
        """The step on these tensors, as a graph at once or later."""
        if self.batch_size is not None:
            return self._captured(state)
        run, before = super().runner(state), _CAPTURE

        def run_or_capture(tokens: Tensor) -> Tensor:
            nonlocal run, before
            if before == 0 and not self.refused:
                run = self._captured(state)
            before -= 1
            return run(tokens)

        return run_or_capture

    def _captured(self, state: list[Tensor]) -> Run:
        """The step as a graph on these tensors, which the capture leaves as they are."""
        step, outside = InPlace(self.step), _Outside()
        with torch.inference_mode(False), torch.no_grad():  # the tensors outlive the present inference mode
            token = torch.zeros(len(state[0]), dtype=torch.long, device=self.device)
            copies = [tensor.clone() for tensor in state]

            def warm() -> None:
                with outside:
                    step(token, *copies)

            try:
                replay, logits = capture(warm, lambda: step(token, *state), self.device)
            except RuntimeError as error:  # for example if an operation of a user's mixer waits for a value
                self.refused, reason = True, str(error).partition("\n")[0]
                warnings.warn(f"the step runs without a CUDA graph, which cannot be captured: {reason}", stacklevel=2)
                return super().runner(state)

        def run(tokens: Tensor) -> Tensor:
            token.copy_(tokens)
            replay()
            return logits.clone()  # the next token overwrites them

        # keep tensors that the graph reads but the step does not own, such as cached tables
        vars(run)["reads"] = outside.tensors
        return run


def graph_step(model: VocabularyHead, batch_size: int | None) -> GraphStep:
    """A model's step for CUDA graphs.

    Raises:
        ValueError: If the model is not on a CUDA device, its state grows with the text, or its steps branch by the
            number of tokens (causal SKI).
    """
    if model.device.type != "cuda":
        raise ValueError(f"only models on the CPU or a CUDA device have compiled steps, got one on {model.device}")
    step = StreamingStep(model, online=True)
    if branches(step, batch_size or 1):
        raise ValueError("a CUDA graph cannot hold the steps of this model, which branch by the number of tokens")
    return GraphStep(model, batch_size, step)


@torch.no_grad()
def branches(step: StreamingStep, batch_size: int) -> bool:
    """Whether the host reads counts of tokens in a step, as in that of causal SKI: a graph repeats one branch."""
    state = step.start(batch_size)
    step(torch.zeros(batch_size, dtype=torch.long, device=step.model.device), state)
    return any(host_knows(tensor) for tensor in state.values())


def capture(
    warm: Callable[[], Any], run: Callable[[], Tensor], device: torch.device
) -> tuple[Callable[[], Any], Tensor]:
    """Capture ``run()`` as a CUDA graph after runs of ``warm()``. Returns its replay, and the tensor that it writes."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARMUP):
                warm()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the device
            result = run()
    return graph.replay, result


class _Outside(TorchDispatchMode):
    """Dispatch mode that keeps the tensors that operations read but did not create."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[int, Tensor] = {}
        self._created: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for address, tensor in _addresses((args, kwargs)):
            if address not in self._created:
                self.tensors.setdefault(address, tensor)
        result = function(*args, **(kwargs or {}))
        self._created.update(address for address, _ in _addresses(result) if address not in self.tensors)
        return result


def _addresses(values: Any) -> list[tuple[int, Tensor]]:
    """Return tensors in a tree, with the addresses of their memory."""
    return [(t.untyped_storage().data_ptr(), t) for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]
