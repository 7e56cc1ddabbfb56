"""One captured graph and a plan become a callable: tag, rewrite, route, fuse, split, generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import thunder
import torch
from thunder.common import CompileData, CompileStats
from thunder.core.compile_data import compile_data_and_stats
from thunder.core.prims import PrimIDs
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.transform_common import dce, wrap_return_value_together_with_arguments
from thunder.executors.passes import del_last_used
from thunder.extend import Executor, get_always_executors
from thunder.transforms.autodiff import grad_transform_on_trace, split_into_forward_and_backward

from thunder_tune.compiler.autograd import DirectPasses, differentiable
from thunder_tune.compiler.fusers import fuser
from thunder_tune.compiler.overwriting import overwriting
from thunder_tune.compiler.places import place_of
from thunder_tune.compiler.quantizing import BESIDE
from thunder_tune.compiler.regions import RegionFuser
from thunder_tune.compiler.rewrites import rewrite
from thunder_tune.compiler.router import Router
from thunder_tune.compiler.tagging import op_index, tagged
from thunder_tune.compiler.tail import Split, split
from thunder_tune.compiler.tied_weights import with_rows_added
from thunder_tune.executors import PackStore, operator_executor
from thunder_tune.program.frontend import CapturedGraph, Graph
from thunder_tune.program.kinds import STRUCTURAL, is_view
from thunder_tune.values.fusers import FUSERS
from thunder_tune.values.plan import Plan
from thunder_tune.values.program import Program


@dataclass(eq=False)
class CompiledGraph:
    """A dispatched graph.

    Attributes:
        run: Takes the graph's inputs, returns its outputs.
        places: For each op that computes, where its parts run.
        forward: The executable forward trace, for inspection.
        packs: Weights that its kernels keep in another form.
        backward: The executable backward trace, or None.
        passes: Forward and backward, where it was dispatched for training.
        writes: For each input whether the graph writes to it.
        split: The program in two parts, where CUDA graphs want it so.
    """

    run: Graph
    places: Mapping[int, frozenset[str]]
    forward: TraceCtx
    packs: PackStore
    backward: TraceCtx | None = None
    passes: DirectPasses | None = None
    writes: Sequence[bool] = ()
    split: Split | None = None


def executors_for(plan: Plan) -> list[Executor]:
    """Build the executor list of a plan: the router, the region fuser, Thunder's own two."""
    routed: dict[int, Executor] = {}
    for index, target in enumerate(plan.targets):
        if target not in FUSERS:
            executor = operator_executor(target)
            if executor is not None:
                routed[index] = executor
    region_of = {op: i for i, region in enumerate(plan.regions) for op in region.ops}
    by_name = {region.fuser: fuser(region.fuser) for region in plan.regions}
    fusers = [by_name[region.fuser] for region in plan.regions]
    return [Router(routed), RegionFuser(region_of, fusers), *get_always_executors()]


def compile_graph(
    graph: CapturedGraph, plan: Plan, indices: Sequence[int], *, training: bool
) -> CompiledGraph:
    """Dispatch a graph by a plan; Inductor and nvFuser compile at the first call.

    Args:
        graph: From a capture; stays as it is.
        plan: A composed plan.
        indices: Index in the program of each op of the graph.
        training: Whether to build the backward graph too.
    """
    compiling = thunder._with_cache_info_ctx(_compile)
    compiled: CompiledGraph = compiling(graph, plan, indices, training=training)
    return compiled


def _compile(
    graph: CapturedGraph, plan: Plan, indices: Sequence[int], *, training: bool
) -> CompiledGraph:
    # Constants that name neither type nor device ask for torch's settings.
    thunder._get_cache_info().update(
        default_dtype=torch.get_default_dtype(), default_device=torch.get_default_device()
    )
    executors = executors_for(plan)
    packs = PackStore()
    data = CompileData(fn=graph, executors_list=executors, disable_preprocessing=True)
    with compile_data_and_stats(data, CompileStats()), packs.active():
        trace = rewrite(tagged(graph.trace, indices, plan.precision), plan)
        if training:
            return _with_backward(trace, executors, packs)
        executable = thunder.transform_for_execution(trace, executors_list=executors)
        whole, forward = map(overwriting, executable)
        return CompiledGraph(
            run=forward.python_callable(),
            places=_places(forward),
            forward=forward,
            packs=packs,
            writes=_writes(forward),
            split=split(whole) if plan.cuda_graphs == "whole" else None,
        )


def _with_backward(
    trace: TraceCtx, executors: Sequence[Executor], packs: PackStore
) -> CompiledGraph:
    joint = grad_transform_on_trace(dce(wrap_return_value_together_with_arguments(trace)))
    joint = with_rows_added(joint)
    joint = thunder.transform_for_execution(
        joint, executors_list=executors, use_del_last_used=False
    )[-1]
    forward, backward = split_into_forward_and_backward(joint)
    forward = del_last_used(forward)
    if backward is not None:
        backward = del_last_used(backward, clear_mutable_collections=True)
    passes = passes_of(forward, backward)
    return CompiledGraph(
        run=differentiable(passes),
        places=_places(forward),
        forward=forward,
        packs=packs,
        backward=backward,
        passes=passes,
        writes=_writes(forward),
    )


def passes_of(forward: TraceCtx, backward: TraceCtx | None) -> DirectPasses:
    """Return the passes that run a forward and a backward trace."""
    returned = forward.bound_symbols[-1].args[0]["flat_output"]
    if backward is None:
        return DirectPasses(forward.python_callable(), None, [False] * len(returned))
    cotangents = _unpacked(backward, "cotangents")
    return DirectPasses(
        forward.python_callable(),
        backward.python_callable(),
        [proxy is not None for proxy in cotangents],
    )


def _unpacked(trace: TraceCtx, collection: str) -> Sequence[Any]:
    """Return what a trace takes from one of its arguments; None where it does not use it."""
    unpacked = PrimIDs.UNPACK_SEQUENCE
    return next(
        bsym.output
        for bsym in trace.bound_symbols
        if bsym.sym.id is unpacked and bsym.args[0].name == collection
    )


def _writes(forward: TraceCtx) -> list[bool]:
    """Return for each input of a forward trace whether it writes to it."""
    written: set[str] = set()

    def visit(bsym: BoundSymbol) -> None:
        if bsym.sym.id is PrimIDs.COPY_ or bsym.sym.name == "copy_":
            written.add(bsym.args[1].name)
        for part in bsym.subsymbols:
            visit(part)

    for bsym in forward.bound_symbols:
        visit(bsym)
    inputs, _ = tree_flatten(forward.args)
    return [getattr(proxy, "name", None) in written for proxy in inputs]


def _places(trace: TraceCtx) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = {}

    def visit(bsym: BoundSymbol, place: str) -> None:
        index = op_index(bsym)
        if index is not None and bsym.sym.id not in BESIDE and not is_view(bsym):
            found.setdefault(index, set()).add(place)

    for bsym in trace.bound_symbols:
        if bsym.sym.id in STRUCTURAL:
            continue
        for part in bsym.subsymbols if bsym.sym.is_fusion else (bsym,):
            visit(part, place_of(bsym))
    return {index: frozenset(places) for index, places in found.items()}


def applied_share(program: Program, plan: Plan, places: Mapping[int, frozenset[str]]) -> float:
    """Return the share of ops that run where the plan says, among those that compute anything.

    An op that dispatch removed (a dropout in inference) counts neither way.
    """
    placed = kept = 0
    for op in program.ops:
        where = places.get(op.index)
        if where is None or op.is_view:
            continue
        placed += 1
        kept += where == {plan.targets[op.index]}
    return kept / placed if placed else 1.0
