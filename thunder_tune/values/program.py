"""A captured program as data: ops, cells, classes and their structural hashes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

from thunder_tune.values.codec import digest
from thunder_tune.values.space import BOUNDARY, Assignment

SEAM = "seam"
"""Kind of the classes of seams."""
MATMUL_KINDS = frozenset({"linear", "matmul", "conv", "sdpa"})
"""Anchor kinds that run on matrix units."""


def kind_of_class(class_id: str) -> str:
    """Return the kind that a class id begins with."""
    return class_id.rsplit("-", 1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape, dtype and device kind of one tensor of the program."""

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One bound symbol of the initial trace.

    Attributes:
        index: Position over all graphs of the program, from 0.
        graph: Which graph of the program it lies in; graph breaks give several.
        name: Symbol of Thunder, for example "torch.nn.functional.linear".
        kind: Short kind, for example "linear", "sdpa", "layer_norm", "add".
        inputs: Tensor arguments, in order.
        outputs: Tensor results, in order.
        is_view: Whether it only changes shape or layout and computes nothing.
        class_id: Class of the cell it belongs to.
    """

    index: int
    graph: int
    name: str
    kind: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    is_view: bool
    class_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The smallest run of ops that no choice can divide.

    An *anchor* is one op with executors of its own to choose from (a linear, an attention, a
    norm); *glue* is the run of other ops between two anchors.
    """

    graph: int
    ops: tuple[int, ...]
    class_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Ops that a rewrite can replace by one kernel.

    Attributes:
        rewrite: Name of the rewrite, which is the kind of its class.
        graph: The graph they lie in.
        ops: Their indices, in order; of a chain only the last one's result is used outside.
        class_id: Class of the site.
    """

    rewrite: str
    graph: int
    ops: tuple[int, ...]
    class_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """The border between a cell that computes and the next one of its graph that does.

    Attributes:
        position: Index of the first op beyond it. Cells that only move data lie beyond: they join
            what follows.
        sides: Classes of the two cells.
        class_id: Class of all seams between cells of these classes.
    """

    position: int
    sides: tuple[str, str]
    class_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellClass:
    """All cells with the same structure, shapes and dtypes.

    Attributes:
        id: Kind and the first eight digits of the exact structural hash: the same in every
            process and for every program that contains the class.
        loose_id: The same from the hash without shapes: equal for siblings of another size.
        kind: The anchor's op kind, or "glue".
        count: Number of cells.
        ops: Op names of one cell, in order.
        examples: Index of the first op of each cell, in order.
        summary: For people: shapes and dtypes of one cell.
    """

    id: str
    loose_id: str
    kind: str
    count: int
    ops: tuple[str, ...]
    examples: tuple[int, ...]
    summary: str = ""

    @property
    def is_anchor(self) -> bool:
        """Whether the class is a single op with executors of its own."""
        return self.kind != "glue"


@dataclass(frozen=True, kw_only=True)
class Program:
    """The captured computation of one model on one input signature.

    Attributes:
        front_end: "dynamo", "thunder.jit", or "none" where nothing could be captured.
        hash: Exact structural hash (shapes, dtypes, thunder's version), 64 hex digits.
        loose_hash: The same without shapes.
        ops: Every op of every graph, by index.
        cells: A partition of the ops in program order.
        classes: The cells' classes, by first occurrence.
        sites: Places where a rewrite could apply; they overlap the cells, and perhaps each other.
        site_classes: The sites' classes, by first occurrence.
        training: Whether a backward program belongs to it.
        reason: Why this front end was taken, or why none could capture the model.
    """

    front_end: Literal["dynamo", "thunder.jit", "none"]
    hash: str
    loose_hash: str
    ops: tuple[Op, ...]
    cells: tuple[Cell, ...]
    classes: tuple[CellClass, ...]
    sites: tuple[Site, ...] = ()
    site_classes: tuple[CellClass, ...] = ()
    training: bool = False
    reason: str = ""

    @cached_property
    def by_class(self) -> dict[str, CellClass]:
        """Classes by id."""
        return {c.id: c for c in self.classes}

    @cached_property
    def seams(self) -> tuple[Seam, ...]:
        """Where a region may be cut, in order."""
        computing = [c for c in self.cells if not all(self.ops[i].is_view for i in c.ops)]
        found = []
        for before, after in pairwise(computing):
            if before.graph == after.graph:
                sides = before.class_id, after.class_id
                position = before.ops[-1] + 1
                found.append(Seam(position=position, sides=sides, class_id=_seam_id(sides)))
        return tuple(found)

    @cached_property
    def seam_classes(self) -> tuple[CellClass, ...]:
        """The seams' classes, by first occurrence."""
        groups: dict[str, list[Seam]] = {}
        for seam in self.seams:
            groups.setdefault(seam.class_id, []).append(seam)
        loose = {c.id: c.loose_id for c in self.classes}
        return tuple(
            CellClass(
                id=class_id,
                loose_id=_seam_id(tuple(loose[side] for side in group[0].sides)),
                kind=SEAM,
                count=len(group),
                ops=(),
                examples=tuple(seam.position for seam in group),
                summary=" | ".join(group[0].sides),
            )
            for class_id, group in groups.items()
        )

    @property
    def loose_ids(self) -> dict[str, str]:
        """Class id -> id without shapes, of cells and sites."""
        return {c.id: c.loose_id for c in (*self.classes, *self.site_classes)}

    def tuned_ids(self, assignment: Assignment) -> dict[str, str]:
        """Return the same with seams, where an assignment decides about any.

        All of them: of several that are alike but for shapes the first stands for the first.
        """
        if not any(name.startswith(BOUNDARY) for name in assignment):
            return self.loose_ids
        return {**self.loose_ids, **{c.id: c.loose_id for c in self.seam_classes}}

    @property
    def is_captured(self) -> bool:
        """Whether the program has ops that can be assigned."""
        return bool(self.ops)


def _seam_id(sides: tuple[str, ...]) -> str:
    return f"{SEAM}-{digest(list(sides))[:8]}"
