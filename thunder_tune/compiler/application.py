"""How a recipe was applied to a model: shares, notes, and the warnings that tell of them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thunder_tune.errors import RecipeError
from thunder_tune.program import signature_of
from thunder_tune.program.frontend import CapturedGraph
from thunder_tune.values.recipe import Recipe

OFTEN = 8
"""Calls with equal inputs that compiled something: grad modes, autocast and the like are fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedGraph:
    """A compiled graph.

    Attributes:
        graph: Its `calls` count.
        signature: Of the call that it was compiled in.
        ops: Of its program.
        share: Of them, how many run as the recipe says.
    """

    graph: CapturedGraph
    signature: str
    ops: int
    share: float


@dataclass(eq=False, repr=False)
class Application:
    """How a recipe was applied to a model, so far.

    Attributes:
        recipe: The recipe.
        compiled: The compiled graphs, in order.
        notes: What did not apply, and why.
        fallbacks: Signature -> graphs that could not be captured and run by Inductor.
        whole: Signatures of calls that one back end runs whole, as the recipe says.
        eager_calls: Calls that ran no graph of the recipe at all.
        call: Arguments of the call under way, positional and by keyword.
        turn: Number of that call.
    """

    recipe: Recipe
    compiled: list[AppliedGraph] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fallbacks: Counter[str] = field(default_factory=Counter)
    whole: set[str] = field(default_factory=set)
    eager_calls: int = 0
    call: tuple[Sequence[Any], Mapping[str, Any]] | None = None
    turn: int = 0
    _told: int = 0
    _compiled_in: dict[str, set[int]] = field(default_factory=dict)

    def __repr__(self) -> str:
        notes = "".join(f"; {note}" for note in self.notes)
        return f"<recipe {self.recipe.digest}, applied to {self.applied:.0%}{notes}>"

    def add(self, part: AppliedGraph) -> None:
        """Note a compiled graph, and that it compiles again and again where it does."""
        self.compiled.append(part)
        turns = self._compiled_in.setdefault(part.signature, set())
        turns.add(self.turn)
        if len(turns) == OFTEN:
            self.note(
                f"{OFTEN} calls with {part.signature} were compiled each: a Python value changes "
                "between them, such as a tensor's that a graph break reads (TORCH_LOGS=recompiles)"
            )

    def note(self, what: str) -> None:
        """Note what does not apply; `tell` warns of it."""
        if what not in self.notes:
            self.notes.append(what)

    def note_other_inputs(self, signature: str, runs_as: str) -> None:
        """Note that a call has inputs that the recipe has no plan for.

        Args:
            signature: Of the call.
            runs_as: What the plan that it runs by was tuned for.
        """
        known = [plan.signature for plan in self.recipe.plans]
        if signature in known:
            return
        by = f", runs as for {runs_as}" if len(known) > 1 else ""
        self.note(f"was tuned for {' and '.join(known)}, called with {signature}{by}")

    def tell(self) -> None:
        """Warn of what was noted since the last time, all in one warning."""
        if self._told < len(self.notes):
            text, self._told = self._say(), len(self.notes)
            warnings.warn(text, stacklevel=3)

    def refusal(self) -> RecipeError:
        """Take back what was noted since the last time, as the error for strict callers."""
        error = RecipeError(f"{self._say()} (strict)")
        del self.notes[self._told :]
        return error

    def _say(self) -> str:
        new = "; ".join(self.notes[self._told :])
        return f"recipe {self.recipe.digest} for {self.recipe.model}: {new}"

    def signature(self, inputs: Sequence[Any]) -> str:
        """Return the signature of the call under way; of these inputs where there is none."""
        args, kwargs = self.call or (inputs, {})
        return signature_of(args, kwargs)

    @property
    def graphs(self) -> list[CapturedGraph]:
        """The compiled graphs."""
        return [part.graph for part in self.compiled]

    @property
    def calls(self) -> int:
        """Times that a graph of the recipe ran."""
        return sum(part.graph.calls for part in self.compiled)

    def ran_eagerly(self) -> None:
        """Note that a call was led past every graph of the recipe."""
        self.eager_calls += 1
        self.note(
            "a call ran outside the recipe: Dynamo gave its frames up (TORCH_LOGS=recompiles)"
        )

    @property
    def applied(self) -> float:
        """Share of ops that run where the recipe says; 0 before the first call."""
        if all(part.kind == "whole-program" for part in self.recipe.by_shape):
            return 1.0
        if self.eager_calls:
            return 0.0
        if self.whole and not self.compiled:
            return 1.0
        return _share(self.compiled, self.fallbacks.total())

    @property
    def applied_by_shape(self) -> dict[str, float]:
        """That share by the signature of the calls that something was compiled for."""
        found: dict[str, list[AppliedGraph]] = {}
        for part in self.compiled:
            found.setdefault(part.signature, []).append(part)
        shares = {name: _share(parts, self.fallbacks[name]) for name, parts in found.items()}
        return {**shares, **dict.fromkeys(sorted(self.whole), 1.0)}


def _share(parts: Sequence[AppliedGraph], fallbacks: int) -> float:
    ran = [part for part in parts if part.graph.calls]
    total = sum(part.ops for part in ran)
    share = sum(part.ops * part.share for part in ran) / total if total else 0.0
    return share * (len(parts) / (len(parts) + fallbacks) if parts else 1.0)
