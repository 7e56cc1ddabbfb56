"""The study as Optuna's own tools see it, in Optuna's tables of the same database."""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import Connection, event, make_url
from sqlalchemy.exc import SQLAlchemyError

from thunder_tune.errors import StorageError
from thunder_tune.storage.location import shown
from thunder_tune.storage.outage import ConnectionLost, Outage, is_loss
from thunder_tune.storage.sessions import reason_of
from thunder_tune.study.objective import latency_of
from thunder_tune.values.space import SearchSpace
from thunder_tune.values.trial import TrialResult

T = TypeVar("T")

NUMBER = "thunder_tune_trial"
"""User attribute of an Optuna trial: its number in the study."""
SQLITE_TIMEOUT_S = 60.0
ATTEMPTS = 5


def frozen_trial(
    space: SearchSpace, assignment: Mapping[str, str], number: int, result: TrialResult
) -> FrozenTrial:
    """Make the Optuna trial of a measured candidate.

    A failed candidate becomes a *pruned* trial: Optuna's samplers never see failed ones, whereas
    TPE counts a pruned trial without values as worse than every complete one, so that what
    failed repels. `assignment` must be of `space`; dimensions with one choice are left out.
    """
    params = {
        name: choice
        for name, choice in assignment.items()
        if name in space.by_name and len(space.by_name[name].choices) > 1
    }
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(space.by_name[name].choices) for name in params
    }
    attributes: dict[str, object] = {NUMBER: number}
    if result.failure is not None:
        attributes["failure"] = f"{result.failure.kind}: {result.failure.message}"[:500]
    latency_ms = latency_of(result)
    return create_trial(
        state=TrialState.PRUNED if latency_ms is None else TrialState.COMPLETE,
        value=latency_ms,
        params=params,
        distributions=distributions,
        user_attrs=attributes,
    )


class OptunaRecord:
    """An Optuna study of one version of a search space, kept equal to the study's trials.

    Optuna cannot change a categorical's choices within one study, so each version of the space
    has an Optuna study of its own, named after the study and the space's key. Only finished
    trials are written, each in one transaction: a killed controller leaves no running ones.

    A server that goes away is waited for, as by `Database`.

    Args:
        url: SQLAlchemy URL of the database.
        study: Name of the study.
        space: The version of the space.
        outage: The database's, which is shared.

    Raises:
        StorageError: The database cannot be opened or written; so for every method.
    """

    def __init__(
        self, *, url: str, study: str, space: SearchSpace, outage: Outage | None = None
    ) -> None:
        self.space = space
        self.name = f"{study}@{space.key[:12]}"
        self._url = make_url(url)
        self._outage = outage or Outage()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._storage, self._study = self._through_outages(self._open_study)

    def _open_study(self) -> tuple[optuna.storages.RDBStorage, optuna.Study]:
        storage = _open(self._url.render_as_string(hide_password=False))
        study = optuna.create_study(
            storage=storage,
            study_name=self.name,
            load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(),  # never asked here
        )
        return storage, study

    def sync(self, trials: Iterable[tuple[int, Mapping[str, str], TrialResult]]) -> None:
        """Add the trials that are missing: of older spaces, or from before a crash.

        Args:
            trials: Number in the study, assignment in this space, and result.
        """
        asked = list(trials)

        def work() -> None:
            present = {t.user_attrs.get(NUMBER) for t in self._study.get_trials(deepcopy=False)}
            self._study.add_trials(
                [frozen_trial(self.space, a, n, r) for n, a, r in asked if n not in present]
            )

        self._through_outages(work)

    def add(self, number: int, assignment: Mapping[str, str], result: TrialResult) -> None:
        """Add one finished trial."""
        trial = frozen_trial(self.space, assignment, number, result)
        self._through_outages(
            lambda: self._study.add_trial(trial),
            again=lambda: self.sync([(number, assignment, result)]),
        )

    def postpone(self, assignment: Mapping[str, str]) -> None:
        """Keep a candidate that was not finished, as a waiting trial."""
        self._through_outages(lambda: self._study.enqueue_trial(dict(assignment)))

    def take_postponed(self) -> list[dict[str, str]]:
        """Return the candidates kept by `postpone`, and forget them."""
        taken = {}

        def work() -> None:
            for waiting in self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                taken[waiting.number] = dict(waiting.system_attrs["fixed_params"])
                self._storage.set_trial_state_values(waiting._trial_id, TrialState.FAIL)

        self._through_outages(work)
        return list(taken.values())

    def remove(self, is_wanted: Callable[[str], bool]) -> None:
        """Remove Optuna studies by their names."""

        def work() -> None:
            for name in filter(is_wanted, optuna.get_all_study_names(self._storage)):
                optuna.delete_study(study_name=name, storage=self._storage)

        self._through_outages(work)

    def close(self) -> None:
        """Close the connections."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _through_outages(
        self, work: Callable[[], T], *, again: Callable[[], T] | None = None
    ) -> T:
        """Do `work`; after a lost connection, when it may have come through, `again` instead."""
        next_work = work

        def once() -> T:
            nonlocal next_work
            doing, next_work = next_work, again or work
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return doing()
            except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
                cause = _cause(error)
                kind = ConnectionLost if is_loss(cause) else StorageError
                reason = reason_of(cause, self._url)
                raise kind(f"database {shown(self._url)} {reason}") from error

        return self._outage.through(once)


def forget(url: str, studies: Iterable[str]) -> None:
    """Remove Optuna's copies of studies that are not stored any more.

    Raises:
        StorageError: The database cannot be written.
    """
    wanted = set(studies)
    record = OptunaRecord(url=url, study="", space=SearchSpace(dimensions=()))
    try:
        record.remove(lambda name: name == record.name or name.rpartition("@")[0] in wanted)
    finally:
        record.close()


def _open(url: str) -> optuna.storages.RDBStorage:
    if not url.startswith("sqlite"):
        return _create_tables(url, {"pool_pre_ping": True})
    storage = _create_tables(url, {"connect_args": {"timeout": SQLITE_TIMEOUT_S}})
    # A transaction that begins by reading fails at once, whatever the timeout, when another
    # writer came between: let it wait for the write lock when it begins.
    storage.engine.dispose()
    event.listen(storage.engine, "connect", _on_connect)
    event.listen(storage.engine, "begin", _on_begin)
    return storage


def _create_tables(url: str, options: dict[str, object]) -> optuna.storages.RDBStorage:
    for attempt in range(1, ATTEMPTS):
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs=options)
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            # Controllers that open a new database together create its tables under each other's
            # feet: SQLite says locked or UNIQUE, PostgreSQL duplicate key, both of them exists.
            signs = ("locked", "exists", "UNIQUE", "duplicate key")
            if not any(sign in str(_cause(error)) for sign in signs):
                raise
            time.sleep(0.1 * attempt)
    return optuna.storages.RDBStorage(url, engine_kwargs=options)


def _on_connect(connection: sqlite3.Connection, record: object) -> None:
    connection.isolation_level = None  # `_on_begin` begins transactions, not the driver


def _on_begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _cause(error: Exception) -> Exception:
    """Return what the database said, out of Optuna's wrapping."""
    return error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error
