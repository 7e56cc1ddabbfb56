"""One cell or site of a captured program alone: its ops as a graph, on inputs of that place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import thunder
import torch
from thunder.common import CompileData, CompileStats
from thunder.core import prims
from thunder.core.compile_data import compile_data_and_stats
from thunder.core.langctxs import Languages, langctx
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_tune.compiler.dispatch import CompiledGraph, compile_graph
from thunder_tune.compiler.tagging import clone_trace
from thunder_tune.program.frontend import Capture, CapturedGraph
from thunder_tune.program.kinds import is_anchor_kind, kind_of
from thunder_tune.program.state import unchanged
from thunder_tune.program.structure import ops_of
from thunder_tune.values.fusers import FUSERS
from thunder_tune.values.plan import Plan, Region, Rewriting
from thunder_tune.values.program import Cell, Site
from thunder_tune.values.space import COMPOSED, NO_REWRITE


class NotIsolable(Exception):
    """A place cannot be run alone; the message says why."""


@dataclass(frozen=True, eq=False)
class Place:
    """The first cell or site of a class.

    Attributes:
        class_id: The class.
        graph: The graph it lies in.
        members: Its ops, as the initial trace has them.
        reads: What it computes from, in order.
        results: What is used behind it.
        rewrite: Of a site, the rewrite; "" for a cell.
    """

    class_id: str
    graph: int
    members: tuple[BoundSymbol, ...]
    reads: tuple[Proxy, ...]
    results: tuple[str, ...]
    rewrite: str = ""

    def plan(self, choice: str, fuser: str) -> Plan:
        """Return the plan of this place alone.

        Args:
            choice: Executor, fuser or kernel; "none" leaves a site as it is.
            fuser: What does the light ops of a site that is not rewritten.
        """
        count = len(self.members)
        if self.rewrite and choice != NO_REWRITE:
            site = Rewriting(rewrite=self.rewrite, executor=choice, ops=tuple(range(count)))
            return Plan(program=COMPOSED, targets=(choice,) * count, rewritings=(site,))
        targets = tuple(
            (("torch" if is_anchor_kind(kind_of(b)) else fuser) if self.rewrite else choice)
            for b in self.members
        )
        regions = tuple(
            Region(fuser=target, graph=0, ops=tuple(run))
            for target, run in groupby(range(count), lambda i: targets[i])
            if target in FUSERS
        )
        return Plan(program=COMPOSED, targets=targets, regions=regions)


def place_of_class(capture: Capture, class_id: str) -> Place:
    """Return where a class occurs first.

    Raises:
        NotIsolable: It occurs nowhere, or needs numbers that are known only during a call.
    """
    places: tuple[Cell | Site, ...] = (*capture.program.cells, *capture.program.sites)
    found = next((place for place in places if place.class_id == class_id), None)
    if found is None:
        raise NotIsolable(f"class {class_id} is not in this program")
    trace = capture.graphs[found.graph].trace
    first = next(op.index for op in capture.program.ops if op.graph == found.graph)
    ops = ops_of(trace)
    inside = {i - first for i in found.ops}
    members = tuple(ops[i] for i in sorted(inside))
    made = {p.name for b in members for p in b.flat_proxy_outs}
    reads = {p.name: p for b in members for p in b.flat_proxy_args if p.name not in made}
    if any(not isinstance(p, TensorProxy) for p in reads.values()):
        raise NotIsolable("it needs a number that is known only during a call")
    others = [b for i, b in enumerate(ops) if i not in inside]
    used = {p.name for b in (*others, trace.bound_symbols[-1]) for p in b.flat_proxy_args}
    return Place(
        class_id=class_id,
        graph=found.graph,
        members=members,
        reads=tuple(reads.values()),
        results=tuple(name for name in made if name in used),
        rewrite=found.rewrite if isinstance(found, Site) else "",
    )


def inputs_of(
    capture: Capture,
    places: Iterable[Place],
    *,
    model: Callable[..., Any],
    call: Callable[[], object],
) -> dict[str, tuple[torch.Tensor, ...]]:
    """Return what each place computes from in one call of the model, by class.

    The values are the program's own: parameters themselves, and activations as plain torch ops
    make them. The model and torch's random numbers stay as they were.

    Args:
        capture: Of the model; what was bound before is bound no more.
        places: Of this capture.
        model: Whose buffers are put back.
        call: Calls the capture's entry once, in the grad mode of the capture.
    """
    wanted = list(places)
    values: list[dict[str, torch.Tensor]] = [{} for _ in capture.graphs]
    bound = [
        _tapped(graph, [p for place in wanted if place.graph == i for p in place.reads], values[i])
        for i, graph in enumerate(capture.graphs)
    ]
    try:
        capture.bind(bound)
        with unchanged(model):
            call()
    finally:
        for graph in capture.graphs:
            graph.bound = None
    return {
        place.class_id: tuple(values[place.graph][p.name] for p in place.reads)
        for place in wanted
        if all(p.name in values[place.graph] for p in place.reads)
    }


def compile_place(
    place: Place, inputs: Sequence[torch.Tensor], plan: Plan, *, training: bool
) -> CompiledGraph:
    """Dispatch a place alone; fusers compile at the first call.

    Args:
        place: What to run.
        inputs: Its `reads`, with the gradients that are asked for.
        plan: From `Place.plan`.
        training: Whether a backward belongs to it.

    Returns:
        Its callable takes tensors like `inputs` and returns a tuple.
    """
    graph = CapturedGraph(trace=_alone(place, inputs), static_inputs=(True,) * len(inputs))
    indices = range(len(ops_of(graph.trace)))
    if len(indices) != len(place.members):
        raise NotIsolable("its ops are others when traced alone")
    return compile_graph(graph, plan, indices, training=training)


def _alone(place: Place, inputs: Sequence[torch.Tensor]) -> TraceCtx:
    def part(*values: Any) -> Any:  # noqa: ANN401
        env: dict[str, Any] = dict(zip((p.name for p in place.reads), values, strict=True))

        def read(x: Any) -> Any:  # noqa: ANN401
            return env.get(x.name, x) if isinstance(x, Proxy) else x

        with langctx(Languages.TORCH), compile_data_and_stats(data, CompileStats()):
            for bsym in place.members:
                result = bsym.sym(*tree_map(read, bsym.args), **tree_map(read, bsym.kwargs))
                _bind(bsym.output, result, env)
        return tuple(env[name] for name in place.results)

    data = CompileData(fn=part, executors_list=[], disable_preprocessing=True)
    tracer: Callable[..., TraceCtx] = thunder.trace()
    return thunder._with_cache_info_ctx(tracer)(part, *inputs)


def _bind(old: Any, new: Any, env: dict[str, Any]) -> None:  # noqa: ANN401
    if isinstance(old, Proxy):
        env[old.name] = new
    elif isinstance(old, (tuple, list)):
        for one, other in zip(old, new, strict=True):
            _bind(one, other, env)


def _tapped(
    graph: CapturedGraph, wanted: Sequence[Proxy], values: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Return the graph as plain torch calls that also keeps the values of some proxies."""
    taps = {p.name: p for p in wanted}
    trace = clone_trace(graph.trace)
    returned = trace.bound_symbols[-1]
    both = (returned.args, tuple(taps.values()))
    trace.bound_symbols[-1] = prims.python_return.bind(both, output=None)
    count = len(ops_of(trace))
    plan = Plan(program=COMPOSED, targets=("torch",) * count)
    tapped = CapturedGraph(trace=trace, static_inputs=graph.static_inputs)
    compiled = compile_graph(tapped, plan, range(count), training=False)

    def run(*inputs: Any) -> Any:  # noqa: ANN401
        with torch.no_grad():
            result, found = compiled.run(*inputs)
        values.update(zip(taps, found, strict=True))
        return result[0]

    return run


def differentiable_inputs(
    place: Place, inputs: Sequence[torch.Tensor], *, training: bool
) -> tuple[torch.Tensor, ...]:
    """Return inputs of their own graph of gradients, with gradients where the program has them."""
    asks: Mapping[str, bool] = {
        p.name: training and isinstance(p, TensorProxy) and bool(p.requires_grad)
        for p in place.reads
    }
    return tuple(
        x.detach().requires_grad_(asks[p.name]) for p, x in zip(place.reads, inputs, strict=True)
    )
