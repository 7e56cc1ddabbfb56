"""Whether a class of ops can be given to a target, asked of the installed executors."""

from __future__ import annotations

from collections.abc import Callable

from thunder.common import CompileData, CompileStats
from thunder.core.compile_data import compile_data_and_stats
from thunder.core.prims import OpTags
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import tracectx

from thunder_tune.compiler import fusers
from thunder_tune.compiler.rewrites import composite_of
from thunder_tune.compiler.tagging import clone_trace
from thunder_tune.executors import (
    OPERATOR_EXECUTORS,
    accepts,
    operator_executor,
    unavailable_reason,
)
from thunder_tune.program.frontend import Capture
from thunder_tune.program.kinds import op_name
from thunder_tune.program.structure import ops_of
from thunder_tune.values.fusers import FUSERS
from thunder_tune.values.program import Cell, Site

Viability = Callable[[str, str], str]
"""(class id, target) -> "" where the class can be given to the target, else the reason."""


def viability(capture: Capture, device: str) -> Viability:
    """Return the question for one capture; checkers may touch the device and may raise.

    Args:
        capture: Of the model; one cell or site of each class is asked about.
        device: "cpu" or "cuda".
    """
    program = capture.program
    infos = {info.name: info for info in OPERATOR_EXECUTORS}
    kinds = {c.id: c.kind for c in (*program.classes, *program.site_classes)}

    def ask(class_id: str, target: str) -> str:
        if target in FUSERS:
            reason = fusers.unavailable_reason(target, device)
        else:
            info = infos.get(target)
            if info is not None and info.kinds and kinds[class_id] not in info.kinds:
                return f"does not implement {kinds[class_id]}"
            if info is not None and program.training and not info.trains:
                return "has no gradient"
            reason = unavailable_reason(target, device)
        return reason if reason or target == "torch" else _refusal(capture, class_id, target)

    return ask


def _refusal(capture: Capture, class_id: str, target: str) -> str:
    """Ask the target about the ops of one cell or site of a class."""
    program = capture.program
    places: tuple[Cell | Site, ...] = (*program.cells, *program.sites)
    found = next(place for place in places if place.class_id == class_id)
    graph = capture.graphs[found.graph]
    first = next(op.index for op in program.ops if op.graph == found.graph)
    trace = clone_trace(graph.trace)
    data = CompileData(fn=graph, executors_list=[], disable_preprocessing=True)
    with compile_data_and_stats(data, CompileStats()), tracectx(trace):
        ops = ops_of(trace)
        if isinstance(found, Site):
            bsyms = [composite_of(found.rewrite, [ops[i - first] for i in found.ops])]
        else:
            bsyms = [ops[i - first] for i in found.ops if not program.ops[i].is_view]
        for bsym in bsyms:
            if program.training and target in FUSERS and _is_wrapped(bsym):
                return f"has no gradient of {op_name(bsym)} that stays in a fusion"
            try:
                accepted = _accepts(target, bsym)
            except Exception as error:
                return f"its checker raised {type(error).__name__}: {error}"[:200]
            if not accepted:
                return f"refuses {op_name(bsym)} of this shape and type"
    return ""


def _is_wrapped(bsym: BoundSymbol) -> bool:
    """Whether Thunder only wraps torch's function, which brings its gradient in training."""
    return OpTags.AUTO_REGISTERED in (bsym.sym.tags or ())


def _accepts(target: str, bsym: BoundSymbol) -> bool:
    if target in FUSERS:
        return fusers.fuser(target).can_fuse(bsym)
    executor = operator_executor(target)
    return executor is not None and accepts(executor, bsym)
