"""A confirmation: several programs timed in interleaved blocks over fresh processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from thunder_tune.values.trial import Accuracy, Failure

Verdict = Literal["faster", "tie", "slower"]

NOT_REACHED = "not reached within the time of the comparison"
"""Group of the failures of contenders whose turn did not come in a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A program in a comparison: a name and what to build.

    Attributes:
        name: Baseline name ("eager", "torch.compile", ...) or a label of a candidate.
        assignment: What to build.
        is_baseline: Whether it is what a user would otherwise run.
    """

    name: str
    assignment: Mapping[str, str]
    is_baseline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive timed calls of one contender.

    Attributes:
        contender: Its name.
        position: Place in the randomised order of its process, from 0.
        samples_ms: Time of each call, milliseconds.
        started_at: Unix time, seconds.
    """

    contender: str
    position: int
    samples_ms: tuple[float, ...]
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One fresh process of a comparison: every contender built once, blocks in random order.

    Attributes:
        process_id: The process.
        blocks: In the order run.
        accuracy: Of each contender, on fresh inputs, by name.
        applied: Of each contender, by name.
        first_call_s: Of each contender, by name; compile caches may be warm.
        peak_memory_bytes: Of each contender, by name.
        failures: Of the contenders that gave no blocks, by name.
        marks: What disturbed the round.
    """

    process_id: int
    blocks: tuple[Block, ...]
    accuracy: Mapping[str, Accuracy] = field(default_factory=dict)
    applied: Mapping[str, float] = field(default_factory=dict)
    first_call_s: Mapping[str, float] = field(default_factory=dict)
    peak_memory_bytes: Mapping[str, int | None] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a comparison says of one contender.

    Attributes:
        name: The contender.
        latency_ms: Median over rounds of the round medians.
        ci95_ms: 95 % interval over blocks and rounds.
        ratio: Latency divided by the reference contender's, paired by round and block.
        ratio_ci95: 95 % interval of that ratio.
        accuracy: Of its last round.
        applied: Smallest over rounds; None where no round built it.
        peak_memory_bytes: Largest over rounds.
        first_call_s: Of its first round.
        failure: If it could not be measured, in any round; that a round's time ended before its
            turn came says nothing of a contender which other rounds measured.
        rounds: Rounds that timed both it and the reference.
        ratio_log_error: Standard error of the ratio's natural logarithm.
        ratio_degrees: Degrees of freedom of that error.
    """

    name: str
    latency_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    ratio: float | None = None
    ratio_ci95: tuple[float, float] | None = None
    accuracy: Accuracy | None = None
    applied: float | None = None
    peak_memory_bytes: int | None = None
    first_call_s: float | None = None
    failure: Failure | None = None
    rounds: int = 0
    ratio_log_error: float | None = None
    ratio_degrees: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All rounds, and the standings computed from them.

    Attributes:
        contenders: Who took part.
        rounds: Every process with every block: the evidence.
        reference: Contender that `ratio` refers to: the best baseline.
        standings: By contender, in the order of `contenders`.
    """

    contenders: tuple[Contender, ...]
    rounds: tuple[Round, ...]
    reference: str
    standings: tuple[Standing, ...]

    def standing(self, name: str) -> Standing:
        """Return one contender's standing."""
        return next(s for s in self.standings if s.name == name)
