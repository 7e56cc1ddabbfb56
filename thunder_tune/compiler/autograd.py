"""The seam to PyTorch's autograd for a forward and a backward graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_tune.program.frontend import Graph


class _Differentiable(torch.autograd.Function):
    """Runs the compiled forward, saves what it says, and runs the compiled backward."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        forward: Graph,
        backward: Graph | None,
        places: list[int],
        *inputs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        result, (saved, other) = forward(*inputs)
        ctx.backward_graph, ctx.other, ctx.count = backward, other, len(inputs)
        ctx.save_for_backward(*saved)
        distinct: list[Any] = []
        for output in result["flat_output"]:
            known = [i for i, o in enumerate(distinct) if o is output]
            places.append(known[0] if known else len(distinct))
            distinct += [] if known else [output]
        ctx.places = places
        outputs = tuple(
            # An output that is an input must not be returned as itself from an autograd function.
            o.view_as(o) if isinstance(o, torch.Tensor) and any(o is i for i in inputs) else o
            for o in distinct
        )
        ctx.mark_non_differentiable(
            *(o for o in outputs if isinstance(o, torch.Tensor) and not o.is_floating_point())
        )
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> Any:  # noqa: ANN401
        if ctx.backward_graph is None:
            return (None,) * (ctx.count + 3)
        # The compiled backward takes one for each result, and reads that of its first place.
        repeated = [cotangents[place] for place in ctx.places]
        # The compiled backward clears the lists it is given, so that tensors are freed early.
        saved = list(ctx.saved_tensors)
        gradients = ctx.backward_graph([saved, ctx.other], repeated)
        return (None, None, None, *gradients)


def differentiable(forward: Graph, backward: Graph | None) -> Callable[..., Any]:
    """Join a compiled forward and backward into one differentiable callable."""

    def run(*inputs: Any) -> Any:  # noqa: ANN401
        # torch gives all of a tensor's gradient to the last place that it is returned at, so each
        # leaves the function once.
        places: list[int] = []
        apply: Callable[..., Any] = _Differentiable.apply
        distinct = apply(forward, backward, places, *inputs)
        return tuple(distinct[place] for place in places)

    return run
