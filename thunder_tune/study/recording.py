"""From stored studies to a table of measured plans."""

from __future__ import annotations

from collections.abc import Sequence

from thunder_tune.errors import ConflictError, InputError
from thunder_tune.storage import Database
from thunder_tune.study.history import encode
from thunder_tune.study.objective import latency_of
from thunder_tune.study.plans import PlanLedger
from thunder_tune.study.warm_start import warm_starts
from thunder_tune.values.job import Description
from thunder_tune.values.replay import RecordedPlan, ReplayTable
from thunder_tune.values.screening import class_choices
from thunder_tune.values.space import COMPOSED, PROGRAM


def record(database: Database, studies: Sequence[str]) -> ReplayTable:
    """Put the composed plans of studies of one program on one machine into a table.

    A plan measured by several of them has as many latencies. Plans that a study with the sampler
    "random" measured, its first bets apart, are marked as drawn at random.

    Args:
        database: Where they are stored.
        studies: Names, at least one; the space is that of the last one.

    Raises:
        NotFoundError: There is no such study.
        ConflictError: Program or machine differ.
        InputError: A study has no captured program.
    """
    descriptions = [_described(database, name) for name in studies]
    description = descriptions[-1]
    for name, other in zip(studies, descriptions, strict=True):
        if other.program.hash != description.program.hash:
            raise ConflictError(f"study {name!r} is of another program than {studies[-1]!r}")
        if differences := description.fingerprint.differences(other.fingerprint):
            raise ConflictError(f"study {name!r} ran elsewhere: {'; '.join(differences)}")
    ledger = PlanLedger(description.program, description.space)
    bets = {ledger.candidate(a).plan_key for a in warm_starts(ledger)}
    plans: dict[str, RecordedPlan] = {}
    for name in studies:
        is_random = database.study(name).spec.sampler == "random"
        for trial in database.trials(name, "search"):
            key = trial.result.candidate.plan_key
            assignment = encode(ledger, trial.result.candidate)
            if assignment is None or assignment.get(PROGRAM, COMPOSED) != COMPOSED:
                continue
            known = plans.get(key)
            latency_ms = latency_of(trial.result)
            plans[key] = RecordedPlan(
                choices=tuple(
                    d.choices.index(assignment[d.name]) for d in description.space.dimensions
                ),
                latencies_ms=(
                    *(known.latencies_ms if known else ()),
                    *(() if latency_ms is None else (latency_ms,)),
                ),
                is_random=(is_random and key not in bets) or bool(known and known.is_random),
            )
    wanted = class_choices(description.space)
    return ReplayTable(
        model=database.study(studies[-1]).spec.setting.source.name,
        device=description.fingerprint.device,
        program=description.program,
        space=description.space,
        measurements=tuple(
            m
            for m in database.screening(description.fingerprint.strict_key)
            if m.choice in wanted.get(m.class_id, ())
        ),
        plans=tuple(plans.values()),
    )


def _described(database: Database, study: str) -> Description:
    database.study(study)  # names close ones where it does not exist
    description = database.description(study)
    if description is None or not description.program.is_captured:
        raise InputError(f"study {study!r} has no captured program: there is nothing to record")
    return description
