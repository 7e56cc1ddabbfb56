"""The interface of the capture front ends, and what a capture is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from thunder.core.trace import TraceCtx

from thunder_tune.values.codec import digest
from thunder_tune.values.program import Program

Graph = Callable[..., Any]
"""A compiled graph: takes the graph's inputs, returns its outputs."""


@dataclass(eq=False)
class CapturedGraph:
    """One straight-line graph of a captured model.

    Attributes:
        trace: Initial trace; never changed, candidates work on clones.
        static_inputs: For each graph input, whether it is a parameter or buffer.
        bound: What runs when the model is called; a candidate's compiled graph.
        calls: Times the bound graph ran.
    """

    trace: TraceCtx
    static_inputs: tuple[bool, ...] = ()
    bound: Graph | None = None
    calls: int = 0

    def __call__(self, *inputs: Any) -> Any:  # noqa: ANN401 - the graph's inputs and outputs
        """Run the bound graph."""
        if self.bound is None:
            raise RuntimeError("no candidate is bound to this graph")
        self.calls += 1
        return self.bound(*inputs)


@dataclass(eq=False)
class Capture:
    """A model captured once; every candidate is dispatched from it anew.

    Attributes:
        program: The captured computation as data.
        graphs: Its graphs, in the order they run.
        entry: The model's callable that leads to the bound graphs, guards included.
        seconds: Time of the capture.
        times: Captures made; stays 1.
        signature: Shapes and dtypes of the inputs.
    """

    program: Program
    graphs: Sequence[CapturedGraph]
    entry: Callable[..., Any]
    seconds: float
    signature: str
    times: int = 1
    notes: Mapping[str, str] = field(default_factory=dict)

    def bind(self, compiled: Sequence[Graph]) -> None:
        """Make the model's callable run these compiled graphs from now on."""
        for graph, function in zip(self.graphs, compiled, strict=True):
            graph.bound = function


class FrontEnd(Protocol):
    """Captures a model's computation as initial traces of Thunder."""

    name: str

    def capture(
        self,
        model: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        training: bool,
    ) -> Capture:
        """Capture the whole program.

        Raises:
            CaptureError: The model cannot be captured; names construct, file and line.
        """


class CaptureError(Exception):
    """A front end cannot capture a model; the message names construct, file and line."""


def signature_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Describe the inputs of a call: "float32[1,3,224,224], mask=int64[2,16]"."""

    def one(value: Any) -> str:  # noqa: ANN401
        leaves = torch.utils._pytree.tree_leaves(value)
        texts = [
            f"{str(x.dtype).removeprefix('torch.')}[{','.join(str(s) for s in x.shape)}]"
            if isinstance(x, torch.Tensor)
            else repr(x)[:40]
            for x in leaves
        ]
        return texts[0] if len(texts) == 1 else "(" + ", ".join(texts) + ")"

    return ", ".join([*(one(a) for a in args), *(f"{k}={one(v)}" for k, v in kwargs.items())])


def model_key(model: Callable[..., Any], signature: str) -> str:
    """Return a cheap key of a model on an input signature, computed without any capture.

    It covers the model's class, the names, shapes and dtypes of its parameters and buffers, and
    the inputs' signature.
    """
    state: list[Any] = []
    if isinstance(model, torch.nn.Module):
        state = sorted(
            [name, list(t.shape), str(t.dtype)]
            for name, t in model.state_dict(keep_vars=True).items()
            if isinstance(t, torch.Tensor)
        )
    kind = model if not isinstance(model, torch.nn.Module) else type(model)
    name = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"
    return digest([name, state, signature])
