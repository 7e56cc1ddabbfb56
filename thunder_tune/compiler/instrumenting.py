"""A built program with Thunder's developer transforms applied, its texts, and Thunder's checks.

`thunder.dev_utils` has the transforms: `DebugTransform` (callbacks around every statement),
`NvtxProfileTransform` (NVTX ranges), and `check_trace`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.transform_common import Transform
from thunder.dev_utils.check_trace import check_trace
from thunder.dev_utils.debug_transform import DebugTransform
from thunder.dev_utils.nvtx_profile_transform import NvtxProfileTransform

from thunder_tune.compiler.autograd import differentiable
from thunder_tune.compiler.building import Built, runnable
from thunder_tune.compiler.calls import CallGroup, statements
from thunder_tune.compiler.dispatch import CompiledGraph, passes_of
from thunder_tune.compiler.inductor import InductorRegion
from thunder_tune.program.frontend import Capture
from thunder_tune.values.plan import Plan


def instrument(
    capture: Capture, plan: Plan, graphs: Sequence[CompiledGraph], transforms: Sequence[Transform]
) -> Built:
    """Build a program again from its executable traces, with transforms applied to them.

    What the regions compiled is shared with the program as it was. CUDA graphs are left out: a
    replay runs no statement.

    Args:
        capture: That the program was built from.
        plan: Its plan.
        graphs: Its graphs.
        transforms: With a `transform_trace_post_optimization`.
    """
    training = capture.program.training
    changed = [transformed(graph, transforms, training=training) for graph in graphs]
    plain = replace(plan, cuda_graphs="none")
    bound = [
        runnable(compiled, plain, graph.static_inputs)
        for compiled, graph in zip(changed, capture.graphs, strict=True)
    ]
    return Built(plain, capture.entry, capture, changed, bound)


def transformed(
    graph: CompiledGraph, transforms: Sequence[Transform], *, training: bool
) -> CompiledGraph:
    """Return a graph with transforms applied to its executable traces.

    Args:
        graph: As dispatched; stays as it is.
        transforms: With a `transform_trace_post_optimization`.
        training: Whether it was dispatched for training.
    """
    if not transforms:
        return graph
    forward, backward = graph.forward, graph.backward
    for transform in transforms:
        forward = transform.transform_trace_post_optimization(forward)
        if backward is not None:
            backward = transform.transform_trace_post_optimization(backward)
    if not training:
        return replace(graph, run=forward.python_callable(), forward=forward)
    passes = passes_of(forward, backward)
    run = differentiable(passes)
    return replace(graph, run=run, forward=forward, backward=backward, passes=passes)


def around_statements(
    graphs: Sequence[CompiledGraph], before: Callable[[int], None], after: Callable[[int], None]
) -> Transform:
    """Return the transform that calls back around every statement, with its position.

    Args:
        graphs: Of the program; positions are those of `calls.statements`.
        before: Called with the position before the statement runs.
        after: Called after it.
    """
    found = [bsym for bsym, _ in statements(graphs)]
    position_of = {id(bsym): position for position, bsym in enumerate(found)}

    def callback(act: Callable[[int], None]) -> Callable[..., str]:
        def call(bsym: BoundSymbol, *args: Any, kept: Any = found, **kwargs: Any) -> str:  # noqa: ANN401
            act(position_of[id(bsym)])
            return ""

        return call

    return DebugTransform(pre_callback=callback(before), post_callback=callback(after))


def in_ranges(capture: Capture, plan: Plan, built: Built, prefix: str) -> Built:
    """Return a program whose statements are ranges of torch.profiler: the prefix, a position."""
    open_: list[Any] = []

    def enter(position: int) -> None:
        range_ = torch.profiler.record_function(f"{prefix}{position}")
        range_.__enter__()  # type: ignore[no-untyped-call]  # torch has none
        open_.append(range_)

    def leave(position: int) -> None:
        open_.pop().__exit__(None, None, None)

    return instrument(capture, plan, built.graphs, [around_statements(built.graphs, enter, leave)])


def in_nvtx_ranges(capture: Capture, plan: Plan, built: Built) -> Built:
    """Return a program whose statements are NVTX ranges, as Thunder offers them."""
    return instrument(capture, plan, built.graphs, [NvtxProfileTransform()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One text of a program.

    Attributes:
        title: What it is.
        text: Python, or what a fuser shows of itself.
    """

    title: str
    text: str


def listings(
    graphs: Sequence[CompiledGraph],
    groups: Sequence[CallGroup],
    *,
    numbered: bool = True,
) -> list[Listing]:
    """Return Thunder's execution traces, and of each distinct region what its fuser made of it.

    Before the first call a region of Inductor's shows its FX graph.

    Args:
        graphs: Of the program.
        groups: Its calls with equal ones together.
        numbered: Whether a region's title begins with the number of its group.
    """
    found = []
    for number, graph in enumerate(graphs):
        where = f" of graph {number}" if len(graphs) > 1 else ""
        found.append(Listing(title=f"forward{where}", text=graph.forward.python()))
        if graph.backward is not None:
            found.append(Listing(title=f"backward{where}", text=graph.backward.python()))
    called = [bsym for bsym, _ in statements(graphs)]
    for group in groups:
        if group.is_region:
            first = called[group.calls[0]]
            title, text = _region_text(first)
            mark = f"#{group.number} " if numbered else ""
            found.append(Listing(title=f"{mark}{first.sym.name}: {title}", text=text))
    return found


def _region_text(bsym: BoundSymbol) -> tuple[str, str]:
    region = (bsym._call_ctx or {}).get(bsym.sym.name)
    if isinstance(region, InductorRegion):
        if region.source:
            return "generated by Inductor", region.source
        return "FX graph", region.graph.code.strip()
    definition = getattr(region, "last_used", None)
    if definition is not None:
        return "nvFuser's definition", repr(definition)
    return "ops", "\n".join(bsym.python(indent=0))


def check(capture: Capture, graphs: Sequence[CompiledGraph]) -> list[Listing]:
    """Check every trace of a program by Thunder's `check_trace`; regions are opened for it.

    Returns:
        One text for each trace, empty where it is consistent.
    """
    traces: list[tuple[str, TraceCtx]] = []
    for number, (captured, compiled) in enumerate(zip(capture.graphs, graphs, strict=True)):
        traces.append((f"initial trace of graph {number}", captured.trace))
        traces.append((f"forward trace of graph {number}", _opened(compiled.forward)))
        if compiled.backward is not None:
            traces.append((f"backward trace of graph {number}", _opened(compiled.backward)))
    return [Listing(title=title, text=_problem(trace)) for title, trace in traces]


def _opened(trace: TraceCtx) -> TraceCtx:
    """Return a trace with each region's ops in its place: a fusion has nothing to recompute by."""
    result = from_trace(trace)
    for bsym in trace.bound_symbols:
        result.bound_symbols += bsym.subsymbols if bsym.sym.is_fusion else [bsym]
    return result


def _problem(trace: TraceCtx) -> str:
    try:
        check_trace(trace)
    except Exception as error:  # asserts, and whatever a meta function raises
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""
