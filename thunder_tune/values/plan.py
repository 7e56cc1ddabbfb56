"""What an assignment resolves to once choices without effect are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from thunder_tune.values.codec import digest, to_data
from thunder_tune.values.fusers import FUSERS, without_idle_options
from thunder_tune.values.program import Cell, Program
from thunder_tune.values.space import (
    BOUNDARY,
    COMPOSED,
    CUDA_GRAPHS,
    CUT,
    EXECUTOR,
    FLOAT32_MATMUL,
    FUSER,
    NO_LIMIT,
    NO_REWRITE,
    PRECISION,
    PROGRAM,
    REGION_LIMIT,
    REWRITE,
    Assignment,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Cells merged into one fusion: consecutive ops of one graph, no seam between them cut."""

    fuser: str
    graph: int
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """A site that one kernel computes: its ops, and the executor that they go to."""

    rewrite: str
    executor: str
    ops: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A program to build, fully decided; equal plans are one candidate.

    Attributes:
        program: "composed" or the name of a whole-program back end.
        targets: For every op its operator executor, or its fuser where it lies in a region.
        regions: The fusions, in program order.
        rewritings: Sites replaced by one kernel; their ops are in no region.
        precision: For every op the type it computes in where that differs from its own, or "".
        cuda_graphs: "none" or "whole".
        float32_matmul: "ieee" or "tf32".
    """

    program: str
    targets: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    rewritings: tuple[Rewriting, ...] = ()
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

    A cell that only moves data has no choice of its own: it joins the region that follows it, else
    the one before it, else it runs as plain torch calls.

    Args:
        program: The captured program.
        assignment: Choices by dimension; a class without a choice goes to "torch".
    """
    back_end = assignment.get(PROGRAM, COMPOSED)
    if back_end != COMPOSED:
        return Plan(program=back_end)
    rewritings = _rewritings(program, assignment)
    targets = without_idle_options(program, _targets(program, assignment, rewritings))
    rewritten = {op for site in rewritings for op in site.ops}
    precision = [""] * len(program.ops)
    for cell in program.cells:
        compute = assignment.get(PRECISION + cell.class_id, "")
        for i in cell.ops:
            if i in rewritten:  # the kernel computes in the type of its inputs
                continue
            own = program.ops[i].outputs[0].dtype if program.ops[i].outputs else compute
            precision[i] = "" if compute == own else compute
    return Plan(
        program=COMPOSED,
        targets=targets,
        regions=_regions(program, targets, assignment),
        rewritings=rewritings,
        precision=tuple(precision),
        cuda_graphs=assignment.get(CUDA_GRAPHS, "none"),
        float32_matmul=assignment.get(FLOAT32_MATMUL, "ieee"),
    )


def moves_only(program: Program, cell: Cell) -> bool:
    """Whether a cell computes nothing, so that it has no dimension."""
    return all(program.ops[i].is_view for i in cell.ops)


def _rewritings(program: Program, assignment: Assignment) -> tuple[Rewriting, ...]:
    """Choose the sites to rewrite; of two that overlap the first one wins."""
    taken: set[int] = set()
    found = []
    for site in program.sites:
        executor = assignment.get(REWRITE + site.class_id, NO_REWRITE)
        if executor != NO_REWRITE and taken.isdisjoint(site.ops):
            taken.update(site.ops)
            found.append(Rewriting(rewrite=site.rewrite, executor=executor, ops=site.ops))
    return tuple(found)


def _regions(
    program: Program, targets: tuple[str, ...], assignment: Assignment
) -> tuple[Region, ...]:
    """Merge neighbours with one fuser, but at seams that are cut or where a region is full."""
    named = assignment.get(REGION_LIMIT, NO_LIMIT)
    limit = len(program.ops) if named == NO_LIMIT else int(named)
    is_cut = {s.position: assignment.get(BOUNDARY + s.class_id) == CUT for s in program.seams}
    regions = []
    for (graph, target), run in groupby(program.ops, lambda op: (op.graph, targets[op.index])):
        if target not in FUSERS:
            continue
        ops: list[int] = []
        for op in run:
            if ops and op.index in is_cut and (is_cut[op.index] or len(ops) >= limit):
                regions.append(Region(fuser=target, graph=graph, ops=tuple(ops)))
                ops = []
            ops.append(op.index)
        regions.append(Region(fuser=target, graph=graph, ops=tuple(ops)))
    return tuple(regions)


def _targets(
    program: Program, assignment: Assignment, rewritings: tuple[Rewriting, ...]
) -> tuple[str, ...]:
    targets = ["torch"] * len(program.ops)
    cells = program.cells
    rewritten = {op: site.executor for site in rewritings for op in site.ops}
    chosen: list[str | None] = []
    for cell in cells:
        own = [op for op in cell.ops if op not in rewritten]
        if not own:  # all of it belongs to kernels, which end a region
            chosen.append(rewritten[cell.ops[0]])
        elif all(program.ops[op].is_view for op in own):
            chosen.append(None)
        else:
            prefix = EXECUTOR if program.by_class[cell.class_id].is_anchor else FUSER
            chosen.append(assignment.get(prefix + cell.class_id, "torch"))
    for i, cell in enumerate(cells):
        target = chosen[i] or _joined(cells, chosen, i)
        for op in cell.ops:
            targets[op] = rewritten.get(op, target)
    return tuple(targets)


def _joined(cells: tuple[Cell, ...], chosen: list[str | None], i: int) -> str:
    """Return where a cell that only moves data goes: the next region, the last one, or torch."""
    for target in (_neighbour(cells, chosen, i, 1), _neighbour(cells, chosen, i, -1)):
        if target is not None and target in FUSERS:
            return target
    return "torch"


def _neighbour(
    cells: tuple[Cell, ...], chosen: list[str | None], start: int, step: int
) -> str | None:
    """Return the target of the nearest cell that computes, in one direction of one graph."""
    i = start + step
    while 0 <= i < len(cells) and cells[i].graph == cells[start].graph:
        if chosen[i] is not None:
            return chosen[i]
        i += step
    return None
