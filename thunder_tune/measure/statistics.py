"""Statistics of latencies: repeatability in one process, and claims over several.

Calls of one process share its memory layout, its compiled code and its clock, so that their
scatter says how repeatable that process is and nothing more. What is claimed of two programs rests
on ratios paired inside each process, with processes (rounds) as the unit of replication.

The model is a randomised block design: ln(latency) = program + process + their interaction. Drift
common to all programs is taken out sweep by sweep (the k-th blocks of all programs are
neighbours). The interaction's mean square, over every program that took part in all rounds, is the
error of a comparison, with (rounds - 1)(programs - 1) degrees of freedom where one pair alone
has rounds - 1: three rounds are enough when several programs are compared. It supposes that
programs scatter alike, so the pair's own scatter is taken instead where it is larger.
Source: D. C. Montgomery, Design and Analysis of Experiments, 8th ed., section 4.1.

A comparison may go on once: where a candidate measured faster and this is not sure yet, more
rounds are run and all of them judged together. Each of the two looks may err half as often, so
that together they err no more than one look would (Bonferroni; a group-sequential boundary would
gain little for two looks). Source: C. Jennison and B. W. Turnbull, Group Sequential Methods with
Applications to Clinical Trials, section 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance
from types import MappingProxyType

from thunder_tune.errors import InputError
from thunder_tune.measure.student import interval_of_median_ranks, student_quantile
from thunder_tune.values.comparison import (
    NOT_REACHED,
    Block,
    Comparison,
    Contender,
    Round,
    Standing,
    Verdict,
)
from thunder_tune.values.trial import Failure

FAMILY_WISE_ERROR = 0.01
"""Chance that any of the compared candidates is called faster than it is not, both looks taken
together; the same for slower."""
LOOKS = 2
"""How often a comparison may be judged: after its first rounds, and after more of them."""
MIN_EFFECT = 0.005
"""Relative differences below half a percent are ties: no user would feel them."""
MIN_ROUNDS = 3
"""Fewer fresh processes carry no claim."""
NOISIER = 4.0
"""A pair scattering this many times as much (variance) as the rest stands on its own rounds."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, normal noise: sqrt(pi / 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRatio:
    """Latency of one program over another's, and how sure it is.

    Attributes:
        ratio: Geometric mean over rounds.
        log_error: Standard error of its natural logarithm.
        degrees: Degrees of freedom of that error; 0: no interval can be given.
        rounds: Rounds that timed both.
    """

    ratio: float
    log_error: float
    degrees: int
    rounds: int

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the two-sided interval of the ratio; (0, inf) where there is none."""
        if self.degrees < 1:
            return 0.0, math.inf
        reach = student_quantile(0.5 + confidence / 2, self.degrees) * self.log_error
        return self.ratio * math.exp(-reach), self.ratio * math.exp(min(reach, 700.0))


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval of the median that supposes nothing of the distribution but independence.

    Repeats of one process are correlated: read it as that process's repeatability. Fewer than 6
    samples have no 95 % interval; the smallest and the largest are returned.
    Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1.

    Raises:
        InputError: There are no samples.
    """
    if not samples:
        raise InputError("no samples: an interval needs at least one timed call")
    ordered = sorted(samples)
    low, high = interval_of_median_ranks(len(ordered), confidence)
    return ordered[low], ordered[high]


def paired_ratio(rounds: Sequence[Round], name: str, reference: str) -> PairedRatio | None:
    """Compare two programs by the rounds that timed both.

    Args:
        rounds: All of a comparison: the other programs tell how much programs scatter.
        name: The one.
        reference: The other, which its latency is divided by.

    Returns:
        The ratio, or None where no round timed both.
    """
    return _paired([_round_levels(_blocks(r)) for r in rounds], name, reference)


def standings(
    contenders: Sequence[Contender], rounds: Sequence[Round], reference: str | None = None
) -> Comparison:
    """Say what the rounds of a comparison mean for each contender.

    Args:
        contenders: Who took part.
        rounds: One for each fresh process.
        reference: Contender that ratios refer to; None: the fastest baseline that was timed.

    Raises:
        InputError: The blocks of a round were not interleaved, or the reference is unknown.
    """
    for number, round_ in enumerate(rounds):
        _check_interleaved(round_, number)
    timed_blocks = [_blocks(r) for r in rounds]
    medians = {c.name: _round_medians(timed_blocks, c.name) for c in contenders}
    if reference is None:
        timed = [c.name for c in contenders if c.is_baseline and medians[c.name]]
        reference = min(timed, key=lambda n: median(medians[n]), default="")
    elif reference not in medians:
        raise InputError(f"unknown reference {reference!r}: use one of {', '.join(medians)}")
    levels = [_round_levels(blocks) for blocks in timed_blocks]
    return Comparison(
        contenders=tuple(contenders),
        rounds=tuple(rounds),
        reference=reference,
        standings=tuple(
            _standing(
                c.name,
                rounds,
                ci95_ms=_latency_interval(timed_blocks, c.name, medians[c.name]),
                medians=medians[c.name],
                paired=_paired(levels, c.name, reference),
            )
            for c in contenders
        ),
    )


def decide(standing: Standing, *, family: int, min_effect: float = MIN_EFFECT) -> Verdict:
    """Decide whether a contender is faster than the comparison's reference.

    It is "faster" when the whole interval of its ratio lies below 1 and the ratio below
    1 - `min_effect`, "slower" the other way round. The interval leaves out
    0.01 / (2 looks x `family`) on either side, so that the chance of calling any of `family`
    candidates faster that is not, at either look, is at most 1 % (Bonferroni). Fewer than three
    rounds with the reference decide nothing: a tie. A contender that failed in some round is never
    faster.

    Args:
        standing: From `standings`.
        family: Number of candidates compared with the reference, at least 1.
        min_effect: Smallest relative difference worth a claim.

    Raises:
        InputError: `family` is below 1.
    """
    if family < 1:
        raise InputError(f"family {family}: must be at least 1 candidate")
    if standing.ratio is None or standing.ratio_log_error is None or standing.rounds < MIN_ROUNDS:
        return "tie"
    paired = PairedRatio(
        ratio=standing.ratio,
        log_error=standing.ratio_log_error,
        degrees=standing.ratio_degrees,
        rounds=standing.rounds,
    )
    low, high = paired.interval(1.0 - 2.0 * FAMILY_WISE_ERROR / (LOOKS * family))
    if high < 1.0 and standing.ratio < 1.0 - min_effect and standing.failure is None:
        return "faster"
    return "slower" if low > 1.0 and standing.ratio > 1.0 + min_effect else "tie"


def is_open(comparison: Comparison) -> bool:
    """Whether more rounds could make a claim: a candidate measured faster, but not surely so."""
    family = max(1, len(comparison.contenders) - 1)
    candidates = (comparison.standing(c.name) for c in comparison.contenders if not c.is_baseline)
    return any(
        standing.failure is None
        and standing.ratio is not None
        and standing.ratio < 1.0 - MIN_EFFECT
        and decide(standing, family=family) == "tie"
        for standing in candidates
    )


_Levels = Mapping[str, float]
"""Level of each program in one round: ln of its latency over the typical program's."""


@dataclass(frozen=True, slots=True)
class _RoundLevels:
    levels: _Levels
    sweeps: Mapping[str, Sequence[float]]


_Blocks = Mapping[str, Sequence[Block]]


def _blocks(round_: Round) -> _Blocks:
    """Return the timed blocks of each contender in the order run."""
    found: dict[str, list[Block]] = {}
    for block in sorted(round_.blocks, key=lambda b: b.position):
        if block.samples_ms:
            found.setdefault(block.contender, []).append(block)
    return found


def _round_levels(timed: _Blocks) -> _RoundLevels:
    logs = {
        name: [math.log(max(median(b.samples_ms), 1e-9)) for b in blocks]
        for name, blocks in timed.items()
    }
    count = max((len(values) for values in logs.values()), default=0)
    centres = [median(v[k] for v in logs.values() if k < len(v)) for k in range(count)]
    sweeps = {
        n: [v - c for v, c in zip(values, centres, strict=False)] for n, values in logs.items()
    }
    return _RoundLevels({n: median(v) for n, v in sweeps.items()}, MappingProxyType(sweeps))


def _paired(rounds: Sequence[_RoundLevels], name: str, reference: str) -> PairedRatio | None:
    both = [r for r in rounds if name in r.levels and reference in r.levels]
    if not both:
        return None
    if name == reference:
        return PairedRatio(ratio=1.0, log_error=0.0, degrees=len(both), rounds=len(both))
    differences = [r.levels[name] - r.levels[reference] for r in both]
    ratio = math.exp(fmean(differences))
    if len(both) == 1:
        return _within_one_round(both[0], name, reference, ratio)
    own, degrees = variance(differences), len(both) - 1
    spread = own
    pooled, pooled_degrees = _interaction([r.levels for r in both])
    if own <= NOISIER * pooled:
        spread, degrees = max(own, pooled), pooled_degrees
    return PairedRatio(
        ratio=ratio,
        log_error=math.sqrt(spread / len(both)),
        degrees=degrees,
        rounds=len(both),
    )


def _interaction(rounds: Sequence[_Levels]) -> tuple[float, int]:
    """Return the variance of a difference between two programs from round to round.

    Estimated from all programs that took part in every one of these rounds (at least two do), with
    its degrees of freedom.
    """
    names = [n for n in rounds[0] if all(n in r for r in rounds)]
    by_name = {n: fmean(r[n] for r in rounds) for n in names}
    by_round = [fmean(r[n] for n in names) for r in rounds]
    grand = fmean(by_round)
    squares = sum(
        (r[n] - by_name[n] - mean + grand) ** 2
        for r, mean in zip(rounds, by_round, strict=True)
        for n in names
    )
    degrees = (len(rounds) - 1) * (len(names) - 1)
    return 2.0 * squares / degrees, degrees


def _within_one_round(
    round_: _RoundLevels, name: str, reference: str, ratio: float
) -> PairedRatio:
    """Estimate the error from neighbouring blocks: repeatability of the one process."""
    pairs = list(zip(round_.sweeps[name], round_.sweeps[reference], strict=False))
    if len(pairs) < 2:
        return PairedRatio(ratio=ratio, log_error=0.0, degrees=0, rounds=1)
    spread = variance([a - b for a, b in pairs])
    return PairedRatio(
        ratio=ratio,
        log_error=MEDIAN_ERROR * math.sqrt(spread / len(pairs)),
        degrees=len(pairs) - 1,
        rounds=1,
    )


def _round_medians(rounds: Sequence[_Blocks], name: str) -> list[float]:
    """Return the median latency of each round that timed a contender, milliseconds."""
    samples = ([x for b in timed.get(name, ()) for x in b.samples_ms] for timed in rounds)
    return [median(s) for s in samples if s]


def _standing(
    name: str,
    rounds: Sequence[Round],
    *,
    ci95_ms: tuple[float, float] | None,
    medians: Sequence[float],
    paired: PairedRatio | None,
) -> Standing:
    accuracies = [r.accuracy[name] for r in rounds if name in r.accuracy]
    first_calls = [r.first_call_s[name] for r in rounds if name in r.first_call_s]
    peaks = [p for r in rounds if (p := r.peak_memory_bytes.get(name)) is not None]
    return Standing(
        name=name,
        latency_ms=median(medians) if medians else None,
        ci95_ms=ci95_ms,
        ratio=paired.ratio if paired else None,
        ratio_ci95=paired.interval() if paired and paired.degrees else None,
        accuracy=accuracies[-1] if accuracies else None,
        applied=min((r.applied[name] for r in rounds if name in r.applied), default=None),
        peak_memory_bytes=max(peaks, default=None),
        first_call_s=first_calls[0] if first_calls else None,
        failure=_failure(rounds, name, was_timed=bool(medians)),
        rounds=paired.rounds if paired else 0,
        ratio_log_error=paired.log_error if paired and paired.degrees else None,
        ratio_degrees=paired.degrees if paired else 0,
    )


def _failure(rounds: Sequence[Round], name: str, *, was_timed: bool) -> Failure | None:
    failures = [r.failures[name] for r in rounds if name in r.failures]
    own = [f for f in failures if f.group != NOT_REACHED]
    return next(iter(own if was_timed else own or failures), None)


def _latency_interval(
    rounds: Sequence[_Blocks], name: str, medians: Sequence[float]
) -> tuple[float, float] | None:
    """Return a t interval over rounds; with one round, the interval of its block medians."""
    if not medians:
        return None
    if len(medians) == 1:
        return median_interval([median(b.samples_ms) for r in rounds for b in r.get(name, ())])
    logs = [math.log(max(m, 1e-9)) for m in medians]
    error = math.sqrt(variance(logs) / len(logs))
    reach = math.exp(min(student_quantile(0.975, len(logs) - 1) * error, 700.0))
    return median(medians) / reach, median(medians) * reach


def _check_interleaved(round_: Round, number: int) -> None:
    """Refuse a round in which a contender ran all its blocks in one go.

    Two blocks in a row at the seam of two sweeps are all right: others ran before and after.
    """
    if len({b.position for b in round_.blocks}) != len(round_.blocks):
        raise InputError(f"round {number}: two blocks have one position: repeat the comparison")
    order = [b.contender for b in sorted(round_.blocks, key=lambda b: b.position)]
    counts = {name: order.count(name) for name in order}
    if len(counts) < 2 or min(counts.values()) < 2:
        return
    for name, count in counts.items():
        first = order.index(name)
        is_one_run = order[first : first + count].count(name) == count
        is_seam = count == 2 and 0 < first < len(order) - count
        if is_one_run and not is_seam:
            raise InputError(
                f"round {number}: the blocks of {name!r} were not interleaved with the others': "
                "repeat the comparison in randomised sweeps"
            )
