"""A second device for machines that have only one.

Its tensors compute on the CPU, say that they are elsewhere, and refuse to meet tensors that are not: as on a GPU, only
single numbers and indices may come from the CPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy:0")  # one that torch can name without having been built for it


class Elsewhere(Tensor):
    """A tensor on the second device."""

    here: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, here: Tensor) -> "Elsewhere":
        one: Elsewhere = torch.Tensor._make_wrapper_subclass(
            cls, here.shape, strides=here.stride(), dtype=here.dtype, device=DEVICE
        )
        one.here = here
        return one

    def tolist(self) -> Any:
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """While this is entered, tensors can be made on and moved to `DEVICE`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    away = [t for t in tensors if isinstance(t, Elsewhere)]
    name = func.name()  # type: ignore[attr-defined]
    if away and any(t.ndim for t in tensors if not isinstance(t, Elsewhere)) and not name.startswith("aten::index."):
        raise RuntimeError(f"expected all tensors to be on the same device, got two in {name}")
    there = bool(away)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == DEVICE.type
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*tree_map(_here, args), **tree_map(_here, kwargs))
    if name == "aten::_local_scalar_dense":
        return result
    return tree_map(lambda t: Elsewhere(t) if there and isinstance(t, Tensor) else t, result)


def _here(value: Any) -> Any:
    return value.here if isinstance(value, Elsewhere) else value
