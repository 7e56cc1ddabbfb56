"""Whether a class of ops can be given to a target, asked of the installed executors."""

from __future__ import annotations

from collections.abc import Callable

from thunder.common import CompileData, CompileStats
from thunder.core.compile_data import compile_data_and_stats
from thunder.core.trace import tracectx

from thunder_tune.compiler import fusers
from thunder_tune.compiler.tagging import clone_trace
from thunder_tune.executors import OPERATOR_EXECUTORS, operator_executor, unavailable_reason
from thunder_tune.program.frontend import Capture
from thunder_tune.program.structure import ops_of
from thunder_tune.values.plan import FUSERS

Viability = Callable[[str, str], str]
"""(class id, target) -> "" where the class can be given to the target, else the reason."""


def viability(capture: Capture, device: str) -> Viability:
    """Return the question for one capture; checkers may touch the device and may raise.

    Args:
        capture: Of the model; one cell of each class is asked about.
        device: "cpu" or "cuda".
    """
    program = capture.program
    infos = {info.name: info for info in OPERATOR_EXECUTORS}

    def ask(class_id: str, target: str) -> str:
        cell = next(c for c in program.cells if c.class_id == class_id)
        kind = program.by_class[class_id].kind
        if target in FUSERS:
            reason = fusers.unavailable_reason(target, device)
        else:
            info = infos.get(target)
            if info is not None and info.kinds and kind not in info.kinds:
                return f"does not implement {kind}"
            if info is not None and program.training and not info.trains:
                return "has no gradient"
            reason = unavailable_reason(target, device)
        if reason or target == "torch":
            return reason
        graph = capture.graphs[cell.graph]
        first = next(op.index for op in program.ops if op.graph == cell.graph)
        trace = clone_trace(graph.trace)
        data = CompileData(fn=graph, executors_list=[], disable_preprocessing=True)
        with compile_data_and_stats(data, CompileStats()), tracectx(trace):
            for index in cell.ops:
                if program.ops[index].is_view:
                    continue
                bsym = ops_of(trace)[index - first]
                try:
                    if target in FUSERS:
                        accepted = fusers.fuser(target).can_fuse(bsym)
                    else:
                        executor = operator_executor(target)
                        accepted = executor is not None and executor.can_execute(bsym)
                except Exception as error:
                    return f"its checker raised {type(error).__name__}: {error}"[:200]
                if not accepted:
                    return f"refuses {program.ops[index].name} of this shape and type"
        return ""

    return ask
