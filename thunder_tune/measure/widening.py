"""A model's result in higher precision than its own."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from thunder_tune.errors import ModelError, headline
from thunder_tune.measure.steps import Arguments, Inputs

COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}
NARROWER = {
    torch.float64: (torch.float32, torch.bfloat16, torch.float16),
    torch.float32: (torch.bfloat16, torch.float16),
}


def widened_model(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a model whose floating parameters and buffers have a wider type.

    The copy lies on the same device; every number is exactly the model's own.

    Raises:
        ModelError: The model cannot be copied.
    """
    widen = _widening(dtype)
    try:
        wide = copy.deepcopy(model)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(
            f"the model cannot be copied for a reference: {type(error).__name__}: "
            f"{first_line(error)}: make copy.deepcopy(model) work"
        ) from error
    wide._apply(widen)  # type: ignore[no-untyped-call]  # what Module.to calls; it loses complex
    return wide


def widened_inputs(inputs: Inputs, dtype: torch.dtype) -> Arguments:
    """Return the same inputs with floating tensors in a wider type; integers stay integers."""
    widen = _widening(dtype)

    def change(leaf: object) -> object:
        return widen(leaf.detach()) if isinstance(leaf, torch.Tensor) else leaf

    return Arguments(tree_map(change, inputs.args), tree_map(change, dict(inputs.kwargs)))


@contextmanager
def exact_arithmetic(dtype: torch.dtype) -> Iterator[None]:
    """Keep arithmetic at least as wide as `dtype`, whatever types the model's own code names.

    Models cast inside (norms in float32, masks in the type of the moment); such casts, and
    tensors created in a narrower type, come out in `dtype`. Float32 products do not use TF32.
    """
    default = torch.get_default_dtype()
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with _NothingNarrower(dtype):
            yield
    finally:
        torch.set_default_dtype(default)
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution


def release_memory() -> None:
    """Give memory of dropped tensors back to the device, so that others may have it."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has none
        gc.collect()
        torch.cuda.empty_cache()


class _NothingNarrower(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's hook
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self._dtype = dtype

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the op returns
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in NARROWER[self._dtype]:
            kwargs["dtype"] = self._dtype
        return func(*args, **kwargs)


def _widening(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    def widen(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            return tensor.to(dtype)
        return tensor.to(COMPLEX[dtype]) if tensor.is_complex() else tensor

    return widen


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return headline(str(error), at_most=200) or "no message"
