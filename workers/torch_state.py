"""Torch's global state: what a candidate sets for itself is not kept for the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch

logger = logging.getLogger(__name__)


class _Part(NamedTuple):
    """One part of the state."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


@contextmanager
def kept_torch_state(spend: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Set torch's global state after the block to what it was before; logs what had changed.

    Args:
        spend: Called if a part cannot be set back.
    """
    before = {part: _read(part) for part in _PARTS}
    try:
        yield
    finally:
        changed = {part: value for part, value in before.items() if _read(part) != value}
        for part, value in changed.items():
            if value is not None:
                with suppress(RuntimeError):
                    part.write(value)
        if any(_read(part) != value for part, value in changed.items()):
            spend()
        if changed:
            names = ", ".join(part.name for part in changed)
            logger.warning("the candidate changed torch's %s: set back", names)


def _read(part: _Part) -> Any:  # noqa: ANN401 - of another type for each part
    """Return a part's value, or None where torch refuses it.

    It does for the precision of products, once that was set by two of its interfaces.
    """
    with suppress(RuntimeError):
        return part.read()
    return None


def _deterministic() -> tuple[bool, bool]:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warn_only


def _set_deterministic(state: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(state[0], warn_only=state[1])


def _set_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # "cpu": a mode, and slow


def _autocast() -> tuple[tuple[bool, torch.dtype], ...]:
    return tuple(
        (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS
    )


def _set_autocast(state: tuple[tuple[bool, torch.dtype], ...]) -> None:
    for kind, (is_enabled, dtype) in zip(_KINDS, state, strict=True):
        torch.set_autocast_enabled(kind, is_enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.clear_autocast_cache()


def _set_grad(is_enabled: bool) -> None:
    torch.set_grad_enabled(is_enabled)


def _cudnn() -> tuple[bool, bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32


def _set_cudnn(state: tuple[bool, bool, bool, bool]) -> None:
    cudnn = torch.backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = state


def _pop_modes(depth: int) -> None:
    while torch._C._len_torch_function_stack() > depth:
        torch._C._pop_torch_function_stack()


_KINDS = ("cpu", "cuda")
_PARTS = (
    _Part("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Part("default device", torch.get_default_device, _set_device),
    _Part("function modes", torch._C._len_torch_function_stack, _pop_modes),
    _Part("deterministic algorithms", _deterministic, _set_deterministic),
    _Part("autocast", _autocast, _set_autocast),
    _Part("grad mode", torch.is_grad_enabled, _set_grad),
    _Part("anomaly detection", torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    _Part("number of threads", torch.get_num_threads, torch.set_num_threads),
    _Part(
        "precision of float32 products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    _Part("cuDNN flags", _cudnn, _set_cudnn),
)
