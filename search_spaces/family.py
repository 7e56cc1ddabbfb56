"""The interface of a family of dimensions, and what it is built from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from thunder_tune.executors import computes_in
from thunder_tune.measure.policies import Policy
from thunder_tune.values.program import Program
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import Dimension, Excluded


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a family may look at.

    Attributes:
        program: The captured program; without ops where nothing could be captured.
        source: The model and how it is run.
        policy: Accuracy policy of the study.
        viable: (class id, target) -> "" or the reason why the class cannot be given to it.
        back_end_reason: Back end -> "" or the reason why it is not offered on this device.
    """

    program: Program
    source: ModelSource
    policy: Policy
    viable: Callable[[str, str], str]
    back_end_reason: Callable[[str], str]

    def refusal(self, class_id: str, target: str) -> str:
        """Return "" or the reason why a class is not offered a target: policy, device, shape."""
        computes = computes_in(target)
        reason = self.policy.allows_dtype(self.source.dtype, computes) if computes else ""
        return reason or self.viable(class_id, target)


class Family(Protocol):
    """Builds the dimensions of one family."""

    def __call__(self, context: Context) -> Iterable[Dimension]:
        """Return the dimensions, with every choice left out and its reason."""


def dimension(name: str, family: str, offers: Iterable[tuple[str, str]]) -> Dimension | None:
    """Build a dimension from (choice, reason to leave it out or "") pairs; None if none stays."""
    choices, excluded = [], []
    for choice, reason in offers:
        if reason:
            excluded.append(Excluded(choice=choice, reason=reason))
        else:
            choices.append(choice)
    if not choices:
        return None
    return Dimension(name=name, family=family, choices=tuple(choices), excluded=tuple(excluded))
