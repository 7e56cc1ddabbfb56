"""The seam to PyTorch's autograd for a forward and a backward graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_tune.program.frontend import Graph


class _Differentiable(torch.autograd.Function):
    """Runs the compiled forward, saves what it says, and runs the compiled backward."""

    @staticmethod
    def forward(ctx: Any, forward: Graph, backward: Graph | None, *inputs: Any) -> Any:  # noqa: ANN401
        result, (saved, other) = forward(*inputs)
        ctx.backward_graph, ctx.other, ctx.count = backward, other, len(inputs)
        ctx.save_for_backward(*saved)
        outputs = tuple(
            # An output that is an input must not be returned as itself from an autograd function.
            o.view_as(o) if isinstance(o, torch.Tensor) and any(o is i for i in inputs) else o
            for o in result["flat_output"]
        )
        ctx.mark_non_differentiable(
            *(o for o in outputs if isinstance(o, torch.Tensor) and not o.is_floating_point())
        )
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> Any:  # noqa: ANN401
        if ctx.backward_graph is None:
            return (None,) * (ctx.count + 2)
        # The compiled backward clears the lists it is given, so that tensors are freed early.
        saved = list(ctx.saved_tensors)
        gradients = ctx.backward_graph([saved, ctx.other], list(cotangents))
        return (None, None, *gradients)


def differentiable(forward: Graph, backward: Graph | None) -> Callable[..., Any]:
    """Join a compiled forward and backward into one differentiable callable."""

    def run(*inputs: Any) -> Any:  # noqa: ANN401
        return _Differentiable.apply(forward, backward, *inputs)  # type: ignore[no-untyped-call]

    return run
