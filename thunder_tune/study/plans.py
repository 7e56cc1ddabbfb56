"""Distinct plans of a space: which are taken, and which are left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import product
from random import Random

from thunder_tune.values.plan import resolve
from thunder_tune.values.program import Program
from thunder_tune.values.space import COMPOSED, PROGRAM, Assignment, Dimension, SearchSpace
from thunder_tune.values.trial import Candidate, TrialResult

ENUMERABLE = 4096
"""Spaces of at most so many assignments are enumerated to know exactly what is left."""
RANDOM_DRAWS = 500
"""In a larger space, so many random assignments without a new plan mean that none is left."""

SWEEPS = 3
"""Rounds over all dimensions that a descent takes at most."""
NEIGHBOUR_DRAWS = 30
CHANGED = (1, 1, 2)
"""How many choices a neighbour changes, each as likely: a pair crosses what one alone cannot."""


class PlanLedger:
    """Resolves assignments of one space, and knows which plans are measured or under way.

    Args:
        program: The captured program.
        space: Its dimensions.
    """

    def __init__(self, program: Program, space: SearchSpace) -> None:
        self.program = program
        self.space = space
        self._taken: dict[str, TrialResult | None] = {}
        self._left: dict[str, Candidate] | None = None

    @property
    def whole_programs(self) -> tuple[str, ...]:
        """Back ends that the space offers for the whole program."""
        dimension = self.space.by_name.get(PROGRAM)
        return tuple(c for c in dimension.choices if c != COMPOSED) if dimension else ()

    @property
    def can_compose(self) -> bool:
        """Whether the space offers composed programs: it needs a captured program."""
        dimension = self.space.by_name.get(PROGRAM)
        return self.program.is_captured and (dimension is None or COMPOSED in dimension.choices)

    @cached_property
    def open_dimensions(self) -> tuple[Dimension, ...]:
        """Dimensions of a composed program with more than one choice."""
        if not self.can_compose:
            return ()
        return tuple(d for d in self.space.dimensions if d.name != PROGRAM and len(d.choices) > 1)

    def composed(self, choices: Assignment) -> dict[str, str]:
        """Complete choices with defaults to a composed program's assignment."""
        return {**self.space.default, **choices, PROGRAM: COMPOSED}

    def candidate(self, assignment: Assignment) -> Candidate:
        """Resolve an assignment; of a whole-program back end nothing else is kept."""
        back_end = assignment.get(PROGRAM, COMPOSED)
        kept = dict(assignment) if back_end == COMPOSED else {PROGRAM: back_end}
        return Candidate(assignment=kept, plan_key=resolve(self.program, kept).key)

    def take(self, plan_key: str, result: TrialResult | None = None) -> None:
        """Note that a plan is under way, or its result once there is one."""
        self._taken[plan_key] = result
        if self._left is not None:
            self._left.pop(plan_key, None)

    def is_taken(self, plan_key: str) -> bool:
        """Return whether the plan is measured or under way."""
        return plan_key in self._taken

    def result(self, plan_key: str) -> TrialResult | None:
        """Return a measured plan's result, None for any other."""
        return self._taken.get(plan_key)

    def unseen(self, random: Random) -> Candidate | None:
        """Return a plan that was never taken, drawn at random; None: none is left.

        Exact where the space has at most `ENUMERABLE` assignments.
        """
        if self._is_enumerable():
            if self._left is None:
                self._left = {
                    c.plan_key: c for c in self._every() if not self.is_taken(c.plan_key)
                }
            return random.choice(list(self._left.values())) if self._left else None
        for _ in range(RANDOM_DRAWS):
            drawn = {d.name: random.choice(d.choices) for d in self.open_dimensions}
            candidate = self.candidate(self.composed(drawn))
            if not self.is_taken(candidate.plan_key):
                return candidate
        return None

    def neighbour(self, assignment: Assignment, random: Random) -> Candidate | None:
        """Return a plan never taken that is one or two changed choices from a composed one.

        Returns:
            A candidate drawn at random; None where `NEIGHBOUR_DRAWS` draws gave no new plan.
        """
        dimensions = self.open_dimensions
        for _ in range(NEIGHBOUR_DRAWS if dimensions else 0):
            changed = dict(assignment)
            for d in random.sample(dimensions, min(random.choice(CHANGED), len(dimensions))):
                changed[d.name] = random.choice([c for c in d.choices if c != changed[d.name]])
            candidate = self.candidate(changed)
            if not self.is_taken(candidate.plan_key):
                return candidate
        return None

    def cheapest(
        self, cost: Callable[[Assignment], float], start: Assignment, count: int
    ) -> list[dict[str, str]]:
        """Return composed assignments of plans never taken that a model says cost least.

        A descent from `start`, one dimension after the other; what it looks at on its way counts.

        Args:
            cost: Of a complete assignment, cheap to compute.
            start: A complete composed assignment.
            count: At most so many, distinct plans, the cheapest first.
        """
        at, least = dict(start), cost(start)
        seen = {tuple(at.values()): (least, at)}
        for _ in range(SWEEPS):
            before = least
            for d in self.open_dimensions:
                for choice in d.choices:
                    changed = {**at, d.name: choice}
                    if tuple(changed.values()) not in seen:
                        seen[tuple(changed.values())] = (cost(changed), changed)
                options = [seen[tuple({**at, d.name: c}.values())] for c in d.choices]
                least, at = min(options, key=lambda option: option[0])
            if least >= before:
                break
        found: dict[str, dict[str, str]] = {}
        for _, assignment in sorted(seen.values(), key=lambda option: option[0]):
            candidate = self.candidate(assignment)
            if not self.is_taken(candidate.plan_key):
                found.setdefault(candidate.plan_key, assignment)
            if len(found) >= count:
                break
        return list(found.values())

    def _is_enumerable(self) -> bool:
        return math.prod(len(d.choices) for d in self.open_dimensions) <= ENUMERABLE

    def _every(self) -> Iterator[Candidate]:
        for name in self.whole_programs:
            yield self.candidate({PROGRAM: name})
        if not self.can_compose:
            return
        names = [d.name for d in self.open_dimensions]
        for choices in product(*(d.choices for d in self.open_dimensions)):
            yield self.candidate(self.composed(dict(zip(names, choices, strict=True))))
