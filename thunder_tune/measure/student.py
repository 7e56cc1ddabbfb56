"""Quantiles that the statistics need: Student's t and the binomial ranks of a median."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=1024)
def student_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution.

    Args:
        probability: Between 0.5 and 1, both excluded.
        degrees: Degrees of freedom, at least 1.
    """
    low, high = 0.0, 1.0
    while student_cdf(high, degrees) < probability:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2
        if student_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def student_cdf(t: float, degrees: int) -> float:
    """Return P(T <= t) for t >= 0 and whole degrees of freedom.

    Source: M. Abramowitz and I. A. Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    is_odd = degrees % 2 == 1
    term, total = (cosine, cosine) if is_odd else (1.0, 1.0)
    for k in range(3 if is_odd else 2, degrees, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if not is_odd:
        return 0.5 + sine * total / 2
    return 0.5 + (angle + (sine * total if degrees > 1 else 0.0)) / math.pi


def interval_of_median_ranks(count: int, confidence: float) -> tuple[int, int]:
    """Return the ranks (from 0) of the order statistics that enclose the median.

    The narrowest symmetric pair whose coverage is at least `confidence`, by the binomial
    distribution; the first and last where none is.
    """
    allowed = (1.0 - confidence) / 2
    below, rank = 0.0, 0
    while rank < count // 2:
        log_term = (
            math.lgamma(count + 1)
            - math.lgamma(rank + 1)
            - math.lgamma(count - rank + 1)
            - count * math.log(2.0)
        )
        below += math.exp(log_term)
        if below > allowed:
            break
        rank += 1
    low = max(0, rank - 1)
    return low, count - 1 - low
