"""A model's result in higher precision than its own."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
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
def exact_arithmetic(dtype: torch.dtype, *, as_used: bool = False) -> Iterator[None]:
    """Keep arithmetic at least as wide as `dtype`, whatever types the model's own code names.

    Models cast inside (norms in float32, masks in the type of the moment); such casts, and
    tensors created in a narrower type, come out in `dtype`. Float32 products do not use TF32.

    Args:
        dtype: float64 or float32.
        as_used: Widen what is narrower where an op reads it, and forget the wide copy after that
            op: a model then needs room for one wide weight at a time. Without gradients only.

    Raises:
        NotImplementedError: With `as_used`, an op writes to a tensor that is narrower.
    """
    default = torch.get_default_dtype()
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        if as_used:
            with _WidenedForCheckedCalls(dtype), _WidenedAsUsed(dtype):
                yield
        else:
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


class _WidenedAsUsed(_NothingNarrower):  # type: ignore[no-untyped-call]  # torch's hook
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the op returns
        aliases = [a.alias_info for a in func._schema.arguments]  # type: ignore[attr-defined]
        written = [
            value
            for alias, value in zip(aliases, args, strict=False)
            if alias is not None and alias.is_write
        ]
        if any(_is_narrower(value, self._dtype) for value in written):
            raise NotImplementedError(f"{func} writes to a tensor that is not {self._dtype}")
        is_view = not written and any(alias is not None for alias in aliases)
        if not is_view:  # a view costs nothing: what reads it widens it
            args, kwargs = _widened((args, dict(kwargs or {})), self._dtype)
        return super().__torch_dispatch__(func, types, args, kwargs)


class _WidenedForCheckedCalls(TorchFunctionMode):
    """Functions that compare the types of their arguments before any op is dispatched."""

    CHECKED = frozenset(
        {
            *(getattr(torch, f"conv{n}d") for n in (1, 2, 3)),
            *(getattr(torch, f"conv_transpose{n}d") for n in (1, 2, 3)),
            nn.functional.scaled_dot_product_attention,
        }
    )

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        kwargs = dict(kwargs or {})
        if func in self.CHECKED:
            args, kwargs = _widened((args, kwargs), self._dtype)
        return func(*args, **kwargs)


def _widened(arguments: Any, dtype: torch.dtype) -> Any:  # noqa: ANN401 - any structure
    widen = _widening(dtype)
    return tree_map(lambda leaf: widen(leaf) if _is_narrower(leaf, dtype) else leaf, arguments)


def _is_narrower(leaf: object, dtype: torch.dtype) -> bool:
    if not isinstance(leaf, torch.Tensor):
        return False
    is_number = leaf.is_floating_point() or leaf.is_complex()
    return is_number and leaf.dtype not in (dtype, COMPLEX[dtype])


def _widening(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    def widen(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            return tensor.to(dtype)
        return tensor.to(COMPLEX[dtype]) if tensor.is_complex() else tensor

    return widen


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return headline(str(error), at_most=200) or "no message"
