"""The main front end: Dynamo's graphs replayed on Thunder's symbols."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx

from thunder_tune.program.frontend import Capture, CapturedGraph, CaptureError, signature_of
from thunder_tune.program.replay import Unsupported, source_line, trace_graph
from thunder_tune.program.simplify import simplified
from thunder_tune.program.structure import analyse, describe

_NO_LIMIT = 2**20


def lift_recompile_limits() -> None:
    """Let Dynamo compile a function for as many shapes and objects as it is called with.

    The limit of eight is per code object: in a process that met a few models of one class, or one
    model on a few shapes, Dynamo would run the next one, and any call that fits no graph, eagerly
    without a word.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _NO_LIMIT)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, _NO_LIMIT)


def capture_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> CapturedGraph:
    """Turn one of Dynamo's graphs into an initial trace.

    Raises:
        Unsupported: As `trace_graph`.
    """
    trace = simplified(trace_graph(graph, inputs))
    static = tuple(
        isinstance(x, torch.Tensor) and getattr(x, "_dynamo_static_input_type", None) is not None
        for x in inputs
    )
    return CapturedGraph(trace=trace, static_inputs=static)


def _same_graph(
    graph: fx.GraphModule, inputs: Sequence[Any], known: Sequence[tuple[CapturedGraph, bool]]
) -> CapturedGraph:
    """Return the captured graph that another compilation of Dynamo's is the same as.

    A Python number in a guard (a tensor's value that a graph break reads) gives a new compilation
    of the same computation. In another grad mode it is another one: a candidate for inference
    would return results without a gradient.

    Args:
        graph: As Dynamo hands it to a back end.
        inputs: Its example inputs.
        known: The captured graphs, and the grad mode that each was captured in.

    Raises:
        RuntimeError: It is another computation; run outside every candidate, it would deceive.
    """
    found = capture_graph(graph, inputs)
    description = describe(found.trace)
    for captured, grad_mode in known:
        if grad_mode == torch.is_grad_enabled() and describe(captured.trace) == description:
            return captured
    where = next((line for n in graph.graph.nodes if (line := source_line(n))), "an unknown line")
    raise RuntimeError(
        "the model was called in another way than it was captured: other shapes, types, grad mode "
        f"or Python values, or shapes and branches that depend on values, in the graph at {where}"
    )


def _in_one_line(error: BaseException) -> str:
    """Return what Dynamo says of its failure: what, why, and where in the user's code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    parts = [f"{type(error).__name__}: {lines[0]}"]
    parts += [line.removeprefix("Explanation: ") for line in lines if "Explanation:" in line][:1]
    places = [line for line in lines if line.startswith('File "')]
    if places and len(lines) > 1:
        name, line = places[-1].split(",")[:2]
        parts.append(f"at {name[6:-1]}:{line.replace('line', '').strip()}")
    return "; ".join(parts)[:500]


class DynamoFrontEnd:
    """Captures through a `torch.compile` back end, so a call keeps Dynamo's guards."""

    name = "dynamo"

    def capture(
        self,
        model: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        training: bool,
    ) -> Capture:
        """Capture every graph that Dynamo makes of one call."""
        started = time.perf_counter()
        known: list[tuple[CapturedGraph, bool]] = []
        closed = False

        def back_end(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            if closed:
                return _same_graph(graph, inputs, known)
            captured = capture_graph(graph, inputs)
            captured.bound = graph.forward  # this first call only needs the model's own result
            known.append((captured, torch.is_grad_enabled()))
            return captured

        lift_recompile_limits()
        entry = torch.compile(model, backend=back_end, dynamic=False)
        try:
            # A warning is no reason to break a graph: it comes after the graph instead.
            reordered = torch._dynamo.config.patch(reorderable_logging_functions={warnings.warn})
            with torch.set_grad_enabled(training), reordered:
                entry(*args, **kwargs)
        except Unsupported as error:
            raise CaptureError(str(error)) from error
        except Exception as error:
            cause = error.__cause__ if isinstance(error.__cause__, Unsupported) else error
            inner = getattr(error, "inner_exception", cause)
            raise CaptureError(_in_one_line(inner)) from error
        closed = True
        graphs = [captured for captured, _ in known]
        for graph in graphs:
            graph.calls = 0
        if not graphs:
            raise CaptureError("Dynamo found no graph: the model does no tensor work it can see")
        return Capture(
            program=analyse(
                [g.trace for g in graphs],
                front_end="dynamo",
                training=training,
                reason=f"{len(graphs)} graphs" if len(graphs) > 1 else "one graph",
            ),
            graphs=graphs,
            entry=entry,
            seconds=time.perf_counter() - started,
            signature=signature_of(args, kwargs),
        )
