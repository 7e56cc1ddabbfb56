"""Whole-program back ends: what a user would run without thunder-tune, and a few more."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from thunder.core.trace import TraceCtx
from torch.utils._pytree import tree_map

from thunder_tune.compiler.compat import stock_recipe
from thunder_tune.values.study import BASELINES, CHANNELS_LAST

_logger = logging.getLogger(__name__)

TORCH_COMPILE = "torch.compile"
THUNDER = "thunder"

BACK_ENDS = BASELINES
"""Choices of the program dimension besides "composed", baselines first."""

_CUDA_ONLY = frozenset({"torch.compile:reduce-overhead"})


def unavailable_reason(name: str, device: str) -> str:
    """Say why a back end is not offered on a device kind, or return ""."""
    if name not in BACK_ENDS:
        return f"no back end of the name {name!r}"
    if name in _CUDA_ONLY and device != "cuda":
        return "differs from torch.compile on CUDA only"
    return ""


def whole_program(
    model: Callable[..., Any], name: str, *, dynamic: bool | None = None
) -> Callable[..., Any]:
    """Return the model as a back end runs it; compiling happens at the first call.

    Args:
        model: Module or function.
        name: One of `BACK_ENDS`, for a module perhaps followed by `CHANNELS_LAST`.
        dynamic: As in `torch.compile`: False compiles each shape for itself.

    Raises:
        ValueError: Another name.
    """
    if name.endswith(CHANNELS_LAST):
        return ChannelsLast(model, name.removesuffix(CHANNELS_LAST), dynamic=dynamic)
    if name == "eager":
        return model
    if name == TORCH_COMPILE:
        compiled: Callable[..., Any] = torch.compile(model, dynamic=dynamic)
        return compiled
    if name == THUNDER:
        return _StockThunder(model)
    if name in BACK_ENDS:
        compiled = torch.compile(model, mode=name.split(":", 1)[1], dynamic=dynamic)
        return compiled
    raise ValueError(f"unknown back end {name!r}: use one of {', '.join(BACK_ENDS)}")


def code_of(name: str) -> str:
    """Write down how `whole_program` runs a model, as a user would: statements of Python.

    Sources: the pages of `torch.compile`, of "Channels Last Memory Format in PyTorch" among its
    tutorials, and Thunder's README.

    Args:
        name: As for `whole_program`.
    """
    lines = []
    if name.endswith(CHANNELS_LAST):
        lines.append("model = model.to(memory_format=torch.channels_last)")
    base = name.removesuffix(CHANNELS_LAST)
    back_end, _, mode = base.partition(":")
    if back_end == TORCH_COMPILE:
        lines.append(f"model = torch.compile(model{f', mode={mode!r}' if mode else ''})")
    elif back_end == THUNDER:
        lines.append("model = thunder.compile(model)")
    if name.endswith(CHANNELS_LAST):
        lines.append("images = images.to(memory_format=torch.channels_last)")
    return "; ".join(lines) or "model as it is"


def execution_traces(program: Callable[..., Any]) -> list[TraceCtx]:
    """Return what Thunder's stock recipe runs, forward and backward, once it was called.

    Other back ends have no traces, and neither has Thunder behind Dynamo.
    """
    return program.traces() if isinstance(program, _StockThunder) else []


@contextmanager
def generated_code() -> Iterator[list[str]]:
    """Collect, inside the block, the source of every graph that Inductor compiles."""
    from torch._inductor.graph import GraphLowering

    found: list[str] = []
    before = GraphLowering.save_output_code
    GraphLowering.save_output_code = found.append
    try:
        yield found
    finally:
        GraphLowering.save_output_code = before


class ChannelsLast:
    """A copy of a model whose weights, and images at each call, have their channels last.

    The copy of the images counts as part of the call: what is compared is called alike.

    Attributes:
        inner: What runs the copy.
    """

    def __init__(self, model: Callable[..., Any], back_end: str, *, dynamic: bool | None) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"channels last is for modules, not {type(model).__name__}")
        # A type checker takes `to` with a memory format alone for one with a device.
        last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.inner = whole_program(last, back_end, dynamic=dynamic)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the model's
        """Call it with images in channels last."""
        args, kwargs = tree_map(_in_channels_last, (args, kwargs))
        return self.inner(*args, **kwargs)


def _in_channels_last(leaf: Any) -> Any:  # noqa: ANN401 - any argument of a model
    is_image = isinstance(leaf, torch.Tensor) and leaf.dim() == 4
    return leaf.contiguous(memory_format=torch.channels_last) if is_image else leaf


class _StockThunder:
    """Thunder's stock recipe: `thunder.compile`, with thunderfx for models its tracer refuses.

    Attributes:
        front_end: "thunder.jit" or "thunder.fx" once it was called.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self._model = model
        self._compiled: Callable[..., Any] | None = None
        self.front_end = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the model's
        if self._compiled is None:
            return self._first(args, kwargs)
        return self._compiled(*args, **kwargs)

    def traces(self) -> list[TraceCtx]:
        import thunder

        if self.front_end != "thunder.jit":
            return []
        stages = thunder.last_traces(self._compiled), thunder.last_backward_traces(self._compiled)
        return [traces[-1] for traces in stages if traces]

    def _first(self, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        if not _is_of_transformers(self._model):
            try:
                return self._compile("thunder.jit", args, kwargs)
            except Exception as error:
                _logger.info("thunder.jit refused the model, thunderfx follows: %s", error)
        return self._compile("thunder.fx", args, kwargs)

    def _compile(self, front_end: str, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        import thunder

        compiled = thunder.compile(self._model, recipe=stock_recipe(front_end))
        result = compiled(*args, **kwargs)
        self._compiled, self.front_end = compiled, front_end
        return result


def _is_of_transformers(model: object) -> bool:
    """Return whether Thunder's tracer is known to refuse a model, after a minute or two of work.

    Thunder 0.2.6's does with all models of transformers 5.
    """
    return type(model).__module__.partition(".")[0] == "transformers"
