"""What an assignment resolves to once choices without effect are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from thunder_tune.values.codec import digest, to_data
from thunder_tune.values.program import Program
from thunder_tune.values.space import (
    COMPOSED,
    CUDA_GRAPHS,
    EXECUTOR,
    FLOAT32_MATMUL,
    FUSER,
    PRECISION,
    PROGRAM,
    Assignment,
)

FUSERS = ("inductor", "nvfuser")
"""Targets that take several ops at once; every other target takes one op."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Cells merged into one fusion: consecutive ops of one graph with the same fuser."""

    fuser: str
    graph: int
    ops: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A program to build, fully decided; equal plans are one candidate.

    Attributes:
        program: "composed" or the name of a whole-program back end.
        targets: For every op its operator executor, or its fuser where it lies in a region.
        regions: The fusions, in program order.
        precision: For every op the type it computes in where that differs from its own, or "".
        cuda_graphs: "none" or "whole".
        float32_matmul: "ieee" or "tf32".
    """

    program: str
    targets: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    precision: tuple[str, ...] = ()
    cuda_graphs: str = "none"
    float32_matmul: str = "ieee"

    @cached_property
    def key(self) -> str:
        """Digest by which two assignments with one effect are recognised."""
        return digest(to_data(self))

    @property
    def is_composed(self) -> bool:
        """Whether the program is assembled by thunder-tune rather than by one back end."""
        return self.program == COMPOSED


def resolve(program: Program, assignment: Assignment) -> Plan:
    """Resolve an assignment to the plan that has the same effect.

    Args:
        program: The captured program.
        assignment: Choices by dimension; a class without a choice goes to "torch".
    """
    back_end = assignment.get(PROGRAM, COMPOSED)
    if back_end != COMPOSED:
        return Plan(program=back_end)
    targets = ["torch"] * len(program.ops)
    precision = [""] * len(program.ops)
    for cell in program.cells:
        prefix = EXECUTOR if program.by_class[cell.class_id].is_anchor else FUSER
        target = assignment.get(prefix + cell.class_id, "torch")
        compute = assignment.get(PRECISION + cell.class_id, "")
        for i in cell.ops:
            targets[i] = target
            precision[i] = "" if compute == program.ops[i].outputs[0].dtype else compute
    regions = []
    for (graph, target), run in groupby(program.ops, lambda op: (op.graph, targets[op.index])):
        ops = list(run)
        if target not in FUSERS:
            continue
        if all(op.is_view for op in ops):  # nothing to compute: the region would change nothing
            for op in ops:
                targets[op.index] = "torch"
            continue
        regions.append(Region(fuser=target, graph=graph, ops=tuple(op.index for op in ops)))
    return Plan(
        program=COMPOSED,
        targets=tuple(targets),
        regions=tuple(regions),
        precision=tuple(precision),
        cuda_graphs=assignment.get(CUDA_GRAPHS, "none"),
        float32_matmul=assignment.get(FLOAT32_MATMUL, "ieee"),
    )
