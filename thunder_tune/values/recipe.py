"""The winner as data: a recipe that `thunder.compile(model, recipe=...)` applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from thunder_tune.errors import ConflictError
from thunder_tune.values.codec import digest, to_data
from thunder_tune.values.comparison import Verdict
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.source import ModelSource
from thunder_tune.values.trial import Accuracy

SCHEMA_VERSION = 2
READABLE_VERSIONS = (1, 2)
"""Version 1 knew one plan, without `TunedPlan.tuning`."""
TUNED = "tuned"
"""What a recipe is called beside baselines that it is measured with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEvidence:
    """A baseline as confirmed beside the recipe; latency None where it failed."""

    name: str
    latency_ms: float | None
    ci95_ms: tuple[float, float] | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why to believe the recipe.

    Attributes:
        study: Study that found it.
        date: ISO date of the confirmation.
        latency_ms: Confirmed latency.
        ci95_ms: Its 95 % interval.
        verdict: Against the best baseline.
        speedup: Best baseline's latency divided by the recipe's.
        speedup_ci95: Its 95 % interval.
        accuracy: As judged in the confirmation.
        peak_memory_bytes: Largest device memory, or None.
        trials: Trials measured by the study.
        processes: Fresh processes of the confirmation.
        baselines: Beside it, in the same blocks.
    """

    study: str
    date: str
    latency_ms: float
    ci95_ms: tuple[float, float]
    verdict: Verdict
    speedup: float
    speedup_ci95: tuple[float, float]
    accuracy: Accuracy | None = None
    peak_memory_bytes: int | None = None
    trials: int = 0
    processes: int = 0
    baselines: tuple[BaselineEvidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeTuning:
    """How one plan of several came about: the recipe's fields of these names, for that plan."""

    source: ModelSource
    kind: Literal["composed", "whole-program"]
    fingerprint: Fingerprint
    front_end: str = "dynamo"
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedPlan:
    """The choices for one input signature.

    Attributes:
        signature: Shapes and dtypes of the inputs it was tuned for, as text.
        program_hash: Exact structural hash of the program.
        program_loose_hash: The same without shapes.
        assignment: Choices by dimension name.
        classes: Class id -> class id without shapes, to carry choices to another shape.
        tuning: Of this plan, where a recipe has several; None: what the recipe says.
    """

    signature: str
    program_hash: str
    program_loose_hash: str
    assignment: Mapping[str, str]
    classes: Mapping[str, str] = field(default_factory=dict)
    tuning: ShapeTuning | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A tuned program, data only: reading one imports and executes nothing.

    With several plans, each says how it came about itself (`TunedPlan.tuning`), and what the
    recipe says of source, kind, fingerprint, front end and evidence is that of the first.

    Attributes:
        model: Name of the model.
        source: How the model was made for tuning.
        kind: "composed", or "whole-program" where one back end won.
        plans: One per tuned input signature, at least one.
        fingerprint: Machine and versions it was tuned on.
        policy: Accuracy policy it was accepted under.
        front_end: Front end that captured the program.
        evidence: Confirmation, or None for a recipe written by hand.
        schema_version: Of this document.
    """

    model: str
    source: ModelSource
    kind: Literal["composed", "whole-program"]
    plans: tuple[TunedPlan, ...]
    fingerprint: Fingerprint
    policy: str = "same"
    front_end: str = "dynamo"
    evidence: Evidence | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def digest(self) -> str:
        """Twelve hex digits that identify the content."""
        data = to_data(self)
        for plan in data["plans"]:
            if plan["tuning"] is None:  # the field is younger than many a digest
                del plan["tuning"]
        for part in (data, *(plan.get("tuning", data) for plan in data["plans"])):
            accuracy = (part["evidence"] or {}).get("accuracy") or {}
            if not accuracy.get("tensors", True):  # so is this one
                del accuracy["tensors"]
        return digest(data)[:12]

    @property
    def by_shape(self) -> tuple[Recipe, ...]:
        """The recipe of each plan alone, in order."""
        if len(self.plans) == 1 and self.plans[0].tuning is None:
            return (self,)
        return tuple(self._alone(plan) for plan in self.plans)

    def _alone(self, plan: TunedPlan) -> Recipe:
        tuning = plan.tuning
        if tuning is None:
            return replace(self, plans=(plan,))
        return replace(
            self,
            source=tuning.source,
            kind=tuning.kind,
            plans=(replace(plan, tuning=None),),
            fingerprint=tuning.fingerprint,
            front_end=tuning.front_end,
            evidence=tuning.evidence,
        )


def with_all_shapes(recipes: Sequence[Recipe]) -> Recipe:
    """Put recipes of one model for several input shapes together as one.

    Args:
        recipes: At least one; their order is that of the plans.

    Raises:
        ConflictError: They are of different models, policies or kinds of machine.
    """
    alone = [part for recipe in recipes for part in recipe.by_shape]
    first = alone[0]
    for other in alone[1:]:
        for what, here, there in (
            ("models", first.model, other.model),
            ("policies", first.policy, other.policy),
            ("machines", first.fingerprint.loose_key, other.fingerprint.loose_key),
        ):
            if here != there:
                raise ConflictError(
                    f"plans for {first.plans[0].signature} and {other.plans[0].signature} are of "
                    f"different {what}: tune all shapes alike"
                )
    if len(alone) == 1:
        return first
    plans = tuple(
        replace(
            recipe.plans[0],
            tuning=ShapeTuning(
                source=recipe.source,
                kind=recipe.kind,
                fingerprint=recipe.fingerprint,
                front_end=recipe.front_end,
                evidence=recipe.evidence,
            ),
        )
        for recipe in alone
    )
    return replace(first, plans=plans)
