"""Optuna's samplers by the names a user may ask for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from thunder_tune.errors import InputError, MissingDependency

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


def _tpe(seed: int, workers: int) -> BaseSampler:
    from optuna.samplers import TPESampler

    # With one worker nothing is pending when the next candidate is asked: no lie is needed.
    return TPESampler(seed=seed, multivariate=True, constant_liar=workers > 1)


def _random(seed: int, workers: int) -> BaseSampler:
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed)


def _gp(seed: int, workers: int) -> BaseSampler:
    from optuna.samplers import GPSampler

    return GPSampler(seed=seed)


def _nsgaii(seed: int, workers: int) -> BaseSampler:
    from optuna.samplers import NSGAIISampler

    # Optuna's 50 would spend half a study of 100 trials on the first, random generation.
    return NSGAIISampler(seed=seed, population_size=16)


# CMA-ES is not among them: every dimension is categorical, which it cannot model.
SAMPLERS: dict[str, Callable[[int, int], BaseSampler]] = {
    "tpe": _tpe,
    "random": _random,
    "gp": _gp,
    "nsgaii": _nsgaii,
}


def check_sampler(name: str) -> None:
    """Refuse a sampler that cannot be made.

    Raises:
        InputError: The name is not in `SAMPLERS`.
        MissingDependency: It needs a package that is not installed.
    """
    if name not in SAMPLERS:
        raise InputError(f"unknown sampler {name!r}: use one of {', '.join(SAMPLERS)}")
    if name == "gp" and find_spec("scipy") is None:
        raise MissingDependency("sampler 'gp' needs SciPy: pip install scipy, or use 'tpe'")


def make_sampler(name: str, *, seed: int, workers: int) -> BaseSampler:
    """Make a seeded sampler for so many candidates at a time.

    Raises:
        InputError, MissingDependency: As `check_sampler`.
    """
    check_sampler(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ExperimentalWarning of options that we chose
        return SAMPLERS[name](seed, workers)
