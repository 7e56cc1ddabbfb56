"""The seam to PyTorch's autograd for a forward and a backward graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from thunder_tune.program.frontend import Graph


@dataclass(frozen=True, slots=True)
class Pass:
    """What a forward pass gives.

    Attributes:
        outputs: Of the graph, in order.
        saved: Tensors that the backward pass reads, or None where a kernel left one out.
        state: What else it needs; only the passes themselves look into it.
    """

    outputs: Sequence[Any]
    saved: Sequence[torch.Tensor | None]
    state: Any


class Passes(Protocol):
    """A forward pass that says what it saves, and a backward pass that takes it."""

    @property
    def flows(self) -> Sequence[bool]:
        """For each output whether a gradient goes back from it."""

    def forward(self, inputs: Sequence[Any]) -> Pass:
        """Run the forward pass."""

    def backward(
        self,
        state: Any,  # noqa: ANN401
        saved: list[torch.Tensor | None],
        cotangents: list[Any],
    ) -> Sequence[Any]:
        """Return a gradient, or None, for each input.

        Args:
            state: Of the forward pass.
            saved: What that one saved; may be cleared, so that tensors are freed early.
            cotangents: One for each output, dense where a gradient goes back from it; as `saved`.
        """


@dataclass(frozen=True, slots=True)
class DirectPasses:
    """Passes that call the compiled graphs.

    Attributes:
        forward_graph: Takes the inputs, returns Thunder's result and what it saves.
        backward_graph: Takes two lists, which it clears; None: there is no gradient.
        flows: For each output whether a gradient goes back from it.
    """

    forward_graph: Graph
    backward_graph: Graph | None
    flows: Sequence[bool]

    def forward(self, inputs: Sequence[Any]) -> Pass:
        """Run the forward graph."""
        result, (saved, other) = self.forward_graph(*inputs)
        return Pass(result["flat_output"], saved, other)

    def backward(
        self,
        state: Any,  # noqa: ANN401
        saved: list[torch.Tensor | None],
        cotangents: list[Any],
    ) -> Sequence[Any]:
        """Run the backward graph."""
        assert self.backward_graph is not None
        gradients: Sequence[Any] = self.backward_graph([saved, state], cotangents)
        return gradients


class _Differentiable(torch.autograd.Function):
    """Runs the forward pass, saves what it says, and runs the backward pass."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, places: list[int], *inputs: Any) -> Any:  # noqa: ANN401
        made = passes.forward(inputs)
        ctx.passes, ctx.state, ctx.count = passes, made.state, len(inputs)
        ctx.save_for_backward(*made.saved)
        distinct: list[Any] = []
        still: list[Any] = []
        for output in made.outputs:
            known = [i for i, o in enumerate(distinct) if o is output]
            if not known:
                # An input must not be returned as itself from an autograd function.
                is_input = any(output is i for i in inputs) and isinstance(output, torch.Tensor)
                distinct.append(output)
                still.append(output.view_as(output) if is_input else output)
            places.append(known[0] if known else len(distinct) - 1)
        outputs = tuple(still)
        live = {place for place, flows in zip(places, passes.flows, strict=True) if flows}
        ctx.mark_non_differentiable(
            *(o for i, o in enumerate(outputs) if isinstance(o, torch.Tensor) and i not in live)
        )
        ctx.places = places
        ctx.strides = [_strides(o) if i in live else None for i, o in enumerate(outputs)]
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> Any:  # noqa: ANN401
        dense = [_laid_out(c, s) for c, s in zip(cotangents, ctx.strides, strict=True)]
        # The backward pass takes one for each result, and reads that of its first place.
        repeated = [dense[place] for place in ctx.places]
        saved = list(ctx.saved_tensors)
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained
        gradients = ctx.passes.backward(ctx.state, saved, repeated)
        return (None, None, *gradients)


def differentiable(passes: Passes) -> Callable[..., Any]:
    """Join a forward and a backward pass into one differentiable callable."""

    def run(*inputs: Any) -> Any:  # noqa: ANN401
        # torch gives all of a tensor's gradient to the last place that it is returned at, so each
        # leaves the function once.
        places: list[int] = []
        apply: Callable[..., Any] = _Differentiable.apply
        distinct = apply(passes, places, *inputs)
        return tuple(distinct[place] for place in places)

    return run


def _strides(output: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a dense tensor like an output."""
    if output.is_contiguous():
        return output.stride()
    return torch.empty_like(output, device="meta").stride()


def _laid_out(cotangent: Any, strides: tuple[int, ...] | None) -> Any:  # noqa: ANN401
    """Return a cotangent in the layout that regions were compiled for, or None without a layout.

    That of a sum's gradient has strides of 0, say; the next step's may be another.
    """
    if strides is None or cotangent.stride() == strides:
        return None if strides is None else cotangent
    dense = torch.empty_strided(
        cotangent.shape, strides, dtype=cotangent.dtype, device=cotangent.device
    )
    return dense.copy_(cotangent)
