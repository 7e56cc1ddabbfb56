"""`thunder-tune verify`: does a recipe keep its claim on this machine, today."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.bench_command import recipe_of, setting_of, tuned_in
from thunder_tune.cli.documents import verify_document
from thunder_tune.cli.durations import seconds_of
from thunder_tune.cli.recipe_shapes import one_shape
from thunder_tune.errors import InputError, ModelError
from thunder_tune.values.comparison import Comparison
from thunder_tune.values.documents import disturbances, failure_text
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import DescribeJob
from thunder_tune.values.recipe import TUNED, Recipe
from thunder_tune.values.study import Winner

if TYPE_CHECKING:
    from thunder_tune.study.verification import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came out.

    Attributes:
        recipe: That was verified.
        reason: Why it cannot be compared, or "".
        here: This machine, where a worker could tell.
        comparison: Recipe and baselines, measured now.
        now: What that says of the recipe; None where it could not be measured.
        check: That, held against the claim.
        error: Why it could not be measured, or what `--fail-if-slower` objects to, or "".
    """

    recipe: Recipe
    reason: str = ""
    here: Fingerprint | None = None
    comparison: Comparison | None = None
    now: Winner | None = None
    check: Check | None = None
    error: str = ""

    @property
    def finding(self) -> str | None:
        """Return "confirmed", "changed" or "not comparable"; None where measuring failed."""
        if self.reason:
            return "not comparable"
        return self.check.finding if self.check else None

    @property
    def differences(self) -> list[str]:
        """Say what differs from the machine and software that the recipe was tuned on."""
        return self.here.differences(self.recipe.fingerprint) if self.here else []


def verify(
    subject: Annotated[
        str, typer.Argument(metavar="RECIPE|STUDY", help="Recipe file, or name of a study.")
    ],
    fail_if_slower: Annotated[
        float | None,
        typer.Option(
            "--fail-if-slower",
            metavar="PERCENT",
            help="Exit with status 3 where the speedup is lower by more, 1 where none compares.",
        ),
    ] = None,
    shape: options.Shape = None,
    time_budget: options.TimeBudget = None,
    storage: options.Storage = None,
    ray_address: options.RayAddress = None,
    as_json: options.Json = False,
) -> int:
    """Measure a recipe and its baselines again and say whether it keeps its claim.

    It is confirmed, changed (by how much, and what differs here), or not comparable (why).
    """
    if fail_if_slower is not None and not 0 <= fail_if_slower < 100:
        raise InputError(f"--fail-if-slower {fail_if_slower:g}: percent, from 0 to below 100")
    recipe = one_shape(recipe_of(subject, storage), shape)
    found = _verify(recipe, seconds_of(time_budget) if time_budget else None, ray_address)
    status = exits.FAILED if found.error else exits.DONE
    if not found.error and (objection := _objection(found, fail_if_slower)):
        is_broken = found.check is not None
        found = replace(found, error=objection)
        status = exits.CLAIM_BROKEN if is_broken else exits.FAILED
    _print(found, as_json=as_json)
    return status


def _objection(found: Verification, fail_if_slower: float | None) -> str:
    """Say what `--fail-if-slower` objects to, or ""."""
    if fail_if_slower is None:
        return ""
    if found.check is None:
        return f"--fail-if-slower could not be checked: not comparable: {found.reason}"
    if found.check.is_worse_by(fail_if_slower / 100):
        return (
            f"the speedup is {-100 * found.check.change:.1f} % lower than stated: more than the "
            f"{fail_if_slower:g} % that --fail-if-slower allows"
        )
    return ""


def _verify(recipe: Recipe, budget_s: float | None, ray_address: str | None) -> Verification:
    import torch

    from thunder_tune.cli.progress import observing
    from thunder_tune.cli.tables import console
    from thunder_tune.study import verification
    from thunder_tune.study.bench import EXTRA_ROUNDS, compare_now
    from thunder_tune.study.confirmation import ROUNDS

    started = time.monotonic()
    reason = verification.why_not_here(recipe, has_cuda=torch.cuda.is_available())
    claim = recipe.evidence
    if reason or claim is None:
        return Verification(recipe=recipe, reason=reason)
    setting = setting_of(recipe, "verify")
    with (
        observing(console(stderr=True), f"recipe {recipe.digest} of {recipe.model}") as observer,
        services.pool(setting, workers=1, ray_address=ray_address) as pool,
    ):
        description = pool.describe(DescribeJob(setting=setting))
        if description.failure is not None:
            raise ModelError(description.failure.message)
        observer.on_description(description)
        here = description.fingerprint
        if reason := verification.why_not_comparable(recipe, description):
            return Verification(recipe=recipe, reason=reason, here=here)
        blocks, calls = verification.shape(claim)
        spent_s = time.monotonic() - started
        comparison = compare_now(
            setting,
            verification.contenders(recipe),
            pool=pool,
            observer=observer,
            rounds=ROUNDS,
            extra_rounds=EXTRA_ROUNDS,
            rehearsed=True,
            blocks=blocks,
            calls=calls,
            timeout_s=None if budget_s is None else max(1.0, budget_s - spent_s),
            seed=recipe.source.seed,
        )
    now = tuned_in(recipe, comparison)
    found = Verification(recipe=recipe, here=here, comparison=comparison, now=now)
    error = failure_text(comparison.standing(TUNED).failure)
    if now is None and not error:
        error = "no baseline of the claim could be measured: allow a longer --time-budget"
    if error or now is None:
        return replace(found, error=error)
    check = verification.check(claim, now)
    if check.is_too_noisy:
        return replace(found, reason=_too_noisy(check, comparison))
    return replace(found, check=check)


def _too_noisy(check: Check, comparison: Comparison) -> str:
    total = len(comparison.rounds)
    seen = [f"{mark} in {n}" for mark, n in disturbances(comparison).items()]
    why = f"; disturbed, of {total} processes: {', '.join(seen)}" if seen else ""
    if not math.isfinite(check.resolution):
        return f"fewer than two processes timed both recipe and baseline{why}"
    return f"too much noise: a change below {100 * check.resolution:.0f} % would not show{why}"


def _print(found: Verification, *, as_json: bool) -> None:
    from thunder_tune.cli import tables

    recipe, now = found.recipe, found.now
    screen = tables.console(stderr=as_json)
    if found.comparison is not None:
        title = f"{recipe.model}, {len(found.comparison.rounds)} processes"
        top = (now,) if now else ()
        screen.print(tables.confirmed(found.comparison, top, title=title))
    for line in _said(found):
        screen.print(line, soft_wrap=True)
    if found.error:
        error = " ".join(found.error.split())
        tables.console(stderr=True).print(f"error: {error}", soft_wrap=True)
    if as_json:
        document = verify_document(
            recipe,
            finding=found.finding,
            reason=found.reason,
            change=found.check.change if found.check else None,
            comparison=found.comparison,
            now=now,
            here=found.here,
            differences=found.differences,
            error=found.error,
        )
        print(json.dumps(document, allow_nan=False))


def _said(found: Verification) -> list[str]:
    """Say what came out, and what differs where that may explain it."""
    from thunder_tune.cli.tables import milliseconds

    if found.reason:
        lines = [f"not comparable: {found.reason}"]
    elif found.check and found.now and (claim := found.recipe.evidence):
        lo, hi = claim.speedup_ci95
        now_lo, now_hi = found.now.speedup_ci95
        latency = milliseconds(found.now.standing.latency_ms)
        lines = [
            f"{found.check.finding}{_by_how_much(found.check)}: {found.now.speedup:.3f}x the best "
            f"baseline ({now_lo:.3f}-{now_hi:.3f}), stated {claim.speedup:.3f}x "
            f"({lo:.3f}-{hi:.3f}) on {claim.date[:10]}; {latency} ms, stated "
            f"{milliseconds(claim.latency_ms)} ms"
        ]
    else:
        lines = []
    confirmed = found.check is not None and found.check.finding == "confirmed"
    return lines if confirmed else [*lines, *(f"differs: {d}" for d in found.differences)]


def _by_how_much(check: Check) -> str:
    if check.finding == "changed":
        return f" by {100 * check.change:+.1f} %"
    return f" to within {100 * check.resolution:.1f} %"
