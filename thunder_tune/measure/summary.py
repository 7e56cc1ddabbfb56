"""One candidate's distances from all references, as the numbers that policies ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median

from thunder_tune.measure.distances import Distance, ratio_of
from thunder_tune.measure.judgeable import Case, Slot
from thunder_tune.measure.policies import Part, Policy
from thunder_tune.values.trial import Accuracy, TensorAccuracy

OUTLIER = 10.0
"""One input's error over eager's may be this many times the median's."""
CONFUSED = 0.8
"""An answer must be nearer to its own reference than this share of its way to any other's.

Rounding, however large, moves an answer away from all references alike; an answer that depends on
its input too little is as near to the others.
"""
LARGEST = 1e30
"""Stands for an infinite error."""
NAMED_GRADIENTS = 8
"""So many gradients are stored by name, the worst: a model may have hundreds."""
BLAMED = 3
"""So many tensors does a refusal name."""


@dataclass(frozen=True)
class Summary:
    """Distances of one candidate, by input and slot, beside eager's.

    Attributes:
        slots: What there is to judge.
        cases: Inputs with their references.
        rows: The candidate's distances, one row for each case.
        others: Its distances from the nearest reference of another input, likewise.
    """

    slots: Sequence[Slot]
    cases: Sequence[Case]
    rows: Sequence[Sequence[Distance | None]]
    others: Sequence[Sequence[float]]

    def refusal(self, policy: Policy) -> str:
        """Say why a policy refuses the candidate, and for which tensors, or "" where not."""
        if not policy.is_judged:
            return ""
        refused = policy.refusal(self.accuracy, self.part)
        return f"{refused} ({self.blamed(policy)})" if refused else self.strangeness

    def blamed(self, policy: Policy) -> str:
        """Name the tensors that a policy refuses, the worst first.

        Where it is only together that they are refused, the one with the largest error ratio.
        """
        by_error = sorted(range(len(self.slots)), key=lambda i: -median(self.ratios(i)))
        found = [i for i in by_error if policy.refusal(self._accuracy([i]), self._part([i]))]
        names = [self.slots[i].name for i in found[:BLAMED]] or [self.worst_name()]
        more = f" and {len(found) - BLAMED} more" if len(found) > BLAMED else ""
        return f"{', '.join(names)}{more}"

    @cached_property
    def accuracy(self) -> Accuracy:
        """The numbers to publish; verdicts and precision of the reference are the caller's."""
        named = sorted(self._gradients, key=lambda i: -median(self.ratios(i)))[:NAMED_GRADIENTS]
        tensors = tuple(self._tensor(i) for i in (*self._outputs, *named))
        return replace(self._accuracy(range(len(self.slots))), tensors=tensors)

    @cached_property
    def part(self) -> Part:
        """The worst part of all resolved slots on any input."""
        return self._part(range(len(self.slots)))

    def _accuracy(self, chosen: Sequence[int]) -> Accuracy:
        """Summarize some slots; without an output among them, its error ratio is 0."""
        outputs = [i for i in chosen if not self.slots[i].is_gradient]
        gradients = [i for i in chosen if self.slots[i].is_gradient]
        clear = [i for i in chosen if self.slots[i].is_resolved]
        agreements = [a for i in outputs if (a := self._top1(i)) is not None]
        return Accuracy(
            error_ratio=_finite(max((median(self.ratios(i)) for i in outputs), default=0.0)),
            relative_error=_finite(max(median(self.errors(i)) for i in chosen)),
            cosine=min((d.cosine for i in clear for d in self._of(i)), default=1.0),
            top1_agreement=min(agreements, default=None),
            gradient_error_ratio=(
                _finite(max(median(self.ratios(i)) for i in gradients)) if gradients else None
            ),
            inputs=len(self.cases),
        )

    def _part(self, chosen: Sequence[int]) -> Part:
        ratio, error = 0.0, 0.0
        for i in chosen:
            if not self.slots[i].is_resolved or not self._of(i):
                continue
            worst = max(d.part for d in self._of(i))
            eager = max(d.part for c in self.cases if (d := c.eager[i]))
            ratio = max(ratio, worst / max(eager, self.slots[i].floor))
            error = max(error, worst)
        return Part(error_ratio=ratio, relative_error=error)

    def _tensor(self, i: int) -> TensorAccuracy:
        return TensorAccuracy(
            name=self.slots[i].name,
            error_ratio=_finite(median(self.ratios(i))),
            relative_error=_finite(median(self.errors(i))),
            cosine=min((d.cosine for d in self._of(i)), default=1.0),
            part_error=_finite(max((d.part for d in self._of(i)), default=0.0)),
        )

    @cached_property
    def _outputs(self) -> tuple[int, ...]:
        return tuple(i for i, s in enumerate(self.slots) if not s.is_gradient)

    @cached_property
    def _gradients(self) -> tuple[int, ...]:
        return tuple(i for i, s in enumerate(self.slots) if s.is_gradient)

    @cached_property
    def strangeness(self) -> str:
        """Which answer is unlike the others, or like that to another input; else nothing."""
        for i, slot in enumerate(self.slots):
            ratios = self.ratios(i)
            if max(ratios) > OUTLIER * max(1.0, median(ratios)):
                return (
                    f"{slot.name}: error is {max(ratios):.3g} times eager's on one input, "
                    f"{median(ratios):.3g} on most"
                )
            for row, others in zip(self.rows, self.others, strict=True):
                own = row[i]
                if own and own.absolute > CONFUSED * others[i]:
                    return f"{slot.name}: an answer is no nearer to its reference than to others"
        return ""

    def worst_name(self) -> str:
        """Return the slot with the largest error against eager's."""
        worst = max(range(len(self.slots)), key=lambda i: max(self.ratios(i)))
        return self.slots[worst].name

    def _of(self, i: int) -> list[Distance]:
        return [d for row in self.rows if (d := row[i])]

    def errors(self, i: int) -> list[float]:
        """Return relative errors of a slot by input; a gradient of nothing has none."""
        pairs = zip(self.cases, self.rows, strict=True)
        return [ratio_of(d.absolute, c.scales[i]) for c, row in pairs if (d := row[i])] or [0.0]

    def ratios(self, i: int) -> list[float]:
        """Return errors over eager's by input; below the floor all errors are alike."""
        floor, found = self.slots[i].floor, []
        for case, row in zip(self.cases, self.rows, strict=True):
            own, eager, scale = row[i], case.eager[i], case.scales[i]
            if own and eager:
                error = ratio_of(own.absolute, scale)
                found.append(max(error, floor) / max(ratio_of(eager.absolute, scale), floor))
        return found or [0.0]

    def _top1(self, i: int) -> float | None:
        own = [d.top1 for d in self._of(i) if d.top1 is not None]
        eager = [d.top1 for c in self.cases if (d := c.eager[i]) and d.top1 is not None]
        if not own or not eager:
            return None
        return fmean(own) / fmean(eager) if fmean(eager) else 1.0


def _finite(error: float) -> float:
    """Replace what JSON cannot hold: an error against a reference of nothing is infinite."""
    return error if math.isfinite(error) else LARGEST
