"""What a composed candidate is made of: classes measured alone, and features to correct by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

from thunder_tune.study.plans import PlanLedger
from thunder_tune.values.fusers import FUSERS
from thunder_tune.values.plan import moves_only
from thunder_tune.values.program import Cell
from thunder_tune.values.screening import CLASS_PREFIXES, ClassMeasurement
from thunder_tune.values.space import EXECUTOR, FUSER, NO_REWRITE, REWRITE, Assignment

Feature = tuple[str, str]
"""A dimension and a choice, or a seam: two neighbouring classes."""

FAILED = 3.0
"""A choice that failed alone is taken for so many times the slowest of its class."""
SEAM = "seam:"


class Alone:
    """What choices of classes take alone, in milliseconds."""

    def __init__(self, measurements: Iterable[ClassMeasurement]) -> None:
        self._ms: dict[str, dict[str, float]] = {}
        for m in measurements:
            if m.latency_ms is not None:
                self._ms.setdefault(m.class_id, {})[m.choice] = m.latency_ms

    def knows(self, class_id: str) -> bool:
        """Whether any choice of a class was measured."""
        return class_id in self._ms

    def ms(self, class_id: str, choice: str) -> float:
        """Return what a choice takes; 0 for a class that was never measured."""
        known = self._ms.get(class_id, {})
        return known.get(choice, FAILED * max(known.values(), default=0.0))

    def saved_ms(self, class_id: str, kernel: str) -> float:
        """Return what a kernel saves of a site that is not rewritten; 0 where that is unknown."""
        known = self._ms.get(class_id, {})
        return known[NO_REWRITE] - self.ms(class_id, kernel) if NO_REWRITE in known else 0.0

    def torch_ms(self, class_id: str) -> float:
        """Return what plain torch takes; the median over the choices where that is unknown."""
        return self._ms.get(class_id, {}).get("torch", self.typical_ms(class_id))

    def typical_ms(self, class_id: str) -> float:
        """Return the median over the choices."""
        known = self._ms.get(class_id)
        return median(known.values()) if known else 0.0


class Parts:
    """Takes assignments of one program apart.

    Args:
        ledger: Of the space.
        measurements: Of classes; those of other programs are ignored.

    Attributes:
        widths: For each feature, how far the correction of its milliseconds may plausibly go:
            in proportion to what the class takes in all.
        total_ms: Rough sum of the whole program.
    """

    def __init__(self, ledger: PlanLedger, measurements: Iterable[ClassMeasurement]) -> None:
        program = ledger.program
        self._alone = Alone(measurements)
        self._sites = program.sites
        self._cells = [cell for cell in program.cells if not moves_only(program, cell)]
        self._dimension = {
            c.id: (EXECUTOR if c.is_anchor else FUSER) + c.id for c in program.classes
        }
        self._counts = {c.id: c.count for c in (*program.classes, *program.site_classes)}
        self._globals = tuple(
            d.name for d in ledger.open_dimensions if not d.name.startswith(CLASS_PREFIXES)
        )
        seams = [(SEAM + a.class_id, b.class_id) for a, b in self._neighbours()]
        self._seam_counts = Counter(seams)
        self.total_ms = sum(c.count * self._alone.typical_ms(c.id) for c in program.classes)
        self.widths = dict(self._widths(ledger))

    @property
    def is_measured(self) -> bool:
        """Whether anything of this program was measured alone."""
        return any(self._alone.knows(class_id) for class_id in self._counts)

    def take_apart(self, assignment: Assignment) -> tuple[float, dict[Feature, float]]:
        """Return the sum of what is measured alone, and the features.

        Returns:
            Milliseconds, and for each feature the share of its places where the candidate has
            it: cells that belong to a kernel have no choice of their own.
        """
        sum_ms = 0.0
        taken: set[int] = set()
        places: Counter[Feature] = Counter()
        for site in self._sites:
            kernel = assignment.get(REWRITE + site.class_id, NO_REWRITE)
            if kernel == NO_REWRITE or not taken.isdisjoint(site.ops):
                continue
            taken.update(site.ops)
            places[REWRITE + site.class_id, kernel] += 1
            sum_ms -= self._alone.saved_ms(site.class_id, kernel)
        targets: list[str | None] = []
        for cell in self._cells:
            name = self._dimension[cell.class_id]
            target = assignment.get(name, "torch")
            if taken.issuperset(cell.ops):
                sum_ms += self._reference_ms(cell)
                targets.append(None)
                continue
            sum_ms += self._alone.ms(cell.class_id, target)
            places[name, target] += 1
            targets.append(target if taken.isdisjoint(cell.ops) else None)
        return sum_ms, self._shares(assignment, places, targets)

    def _shares(
        self,
        assignment: Assignment,
        places: Mapping[Feature, int],
        targets: Sequence[str | None],
    ) -> dict[Feature, float]:
        shares = {
            feature: times / self._counts[feature[0].partition(":")[2]]
            for feature, times in places.items()
            if feature in self.widths
        }
        shares.update({(name, assignment[name]): 1.0 for name in self._globals})
        merged: Counter[Feature] = Counter()
        for i, (a, b) in enumerate(pairwise(self._cells)):
            if targets[i] in FUSERS and targets[i] == targets[i + 1] and a.graph == b.graph:
                merged[SEAM + a.class_id, b.class_id] += 1
        shares.update({seam: n / self._seam_counts[seam] for seam, n in merged.items()})
        return shares

    def _reference_ms(self, cell: Cell) -> float:
        """Return what a cell takes within a site that is not rewritten, as that was measured."""
        is_anchor = self._dimension[cell.class_id].startswith(EXECUTOR)
        if is_anchor:
            return self._alone.torch_ms(cell.class_id)
        return self._alone.typical_ms(cell.class_id)

    def _neighbours(self) -> Iterator[tuple[Cell, Cell]]:
        return ((a, b) for a, b in pairwise(self._cells) if a.graph == b.graph)

    def _widths(self, ledger: PlanLedger) -> Iterator[tuple[Feature, float]]:
        for d in ledger.open_dimensions:
            class_id = d.name.partition(":")[2]
            width_ms = self.total_ms
            if d.name.startswith(CLASS_PREFIXES):
                width_ms = self._counts.get(class_id, 1) * self._alone.typical_ms(class_id)
            for choice in d.choices:
                yield (d.name, choice), width_ms
        for (a, b), count in self._seam_counts.items():
            pair = (self._alone.typical_ms(a.removeprefix(SEAM)), self._alone.typical_ms(b))
            yield (a, b), count * min(pair)
