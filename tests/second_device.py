"""A second device made in Python, to find errors of GPU use without a GPU.

Tensors of the device "pretended" keep their values in CPU memory, and the CPU computes every operation. Operations on
tensors of both devices raise an error, as on a GPU, which reveals missing ``device=`` arguments. Tensors can be created
there within `SecondDevice`. Compilation, forward-mode derivatives and inference tensors are not supported: such tests
are marked ``real_device``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

aten = torch.ops.aten
NAME = "pretended"
_ACROSS = {aten._to_copy.default, aten.copy_.default}  # the operations that move values between devices
_INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# Below the dispatch of this device, operations on the CPU do not see that an argument is a lazy conjugate.
_EAGER = {aten._conj.default: aten.conj_physical.default, aten._neg_view.default: aten.neg.default}


class _There(Tensor):
    """A tensor on the device; ``values`` is its CPU tensor."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> _There:
        with torch.inference_mode(False):
            made = Tensor._make_wrapper_subclass(
                cls,
                values.shape,
                strides=values.stride(),
                storage_offset=values.storage_offset(),
                dtype=values.dtype,
                device=torch.device(NAME, 0),
                requires_grad=values.requires_grad,
            )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, new: _There) -> None:
        Tensor.data.__set__(self, new)  # type: ignore[attr-defined]
        self.values = new.values.detach()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.values.untyped_storage()

    def set_(self, *place: Any) -> _There:
        return _There(self.values.set_(*place))

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"a tensor on {NAME!r} has no values in the host's memory; use .cpu() first")
        return self.values.detach().numpy()

    def tolist(self) -> Any:
        return self.values.tolist()

    def __repr__(self) -> str:
        return f"{self.values!r} on {NAME!r}"


class SecondDevice(TorchDispatchMode):
    """Creates tensors on the device where a factory function requests it."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


def _run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU values, and place the result on the device that PyTorch would choose."""
    function = _EAGER.get(function, function)
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = any(isinstance(x, _There) for x in tensors)
    if there and function not in _ACROSS:  # single numbers may be on the CPU, and so may indices
        for x in tensors[:1] if function in _INDEXING else tensors:
            if not isinstance(x, _There) and x.dim():
                raise RuntimeError(f"{function} got tensors on two devices, one {tuple(x.shape)} on the CPU")
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == NAME
        kwargs = kwargs | {"device": torch.device("cpu")}
    elif function in _ACROSS:
        there = isinstance(tensors[0], _There)
    on_cpu = pytree.tree_map(_values, (args, kwargs))
    result = function(*on_cpu[0], **on_cpu[1])
    changed = _changed(function, args, kwargs)
    if changed and function._schema.returns:  # such an operation returns the arguments that it changes
        return changed[0] if len(changed) == 1 else type(result)(changed)
    return pytree.tree_map(lambda x: _There(x) if isinstance(x, Tensor) else x, result) if there else result


def _changed(function: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operation writes to."""
    given = dict(zip((each.name for each in function._schema.arguments), args, strict=False)) | kwargs
    written = [each.name for each in function._schema.arguments if each.alias_info and each.alias_info.is_write]
    return [given[name] for name in written if name in given]


def _values(x: Any) -> Any:
    return x.values if isinstance(x, _There) else x


def _register() -> torch.library.Library:
    """Register the device with PyTorch, and the operations that are called outside of a dispatch mode."""

    class Backend(_DummyBackendModule):
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float16]

    _setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
    # Module.to() makes new parameters: it cannot exchange the values of the old ones.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    library = torch.library.Library("aten", "IMPL")
    for function in (aten.empty.memory_format, aten.empty_strided.default):

        def make(*args: Any, function: Any = function, **kwargs: Any) -> Tensor:
            return _There(function(*args, **(kwargs | {"device": torch.device("cpu")})))

        library.impl(function.name(), make, "PrivateUse1")

    def copy(values: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        _values(target).copy_(_values(values))
        return target

    library.impl("aten::_copy_from", copy, "PrivateUse1")
    return library


_LIBRARY = _register()  # it ends with its last reference
