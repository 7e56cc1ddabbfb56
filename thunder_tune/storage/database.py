"""The database of studies, trials and recipes, as the rest of thunder-tune sees it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from thunder_tune.storage import (
    collecting,
    leases,
    outlines,
    recipes,
    schema,
    screenings,
    studies,
    transfer,
    trials,
)
from thunder_tune.storage.collecting import Collected
from thunder_tune.storage.location import locate, shown
from thunder_tune.storage.outage import PATIENCE_S, Outage
from thunder_tune.storage.outlines import Machine, Outlined, Tally
from thunder_tune.storage.records import (
    LeaseRecord,
    Owner,
    StudyRecord,
    StudySummary,
    TrialRecord,
)
from thunder_tune.storage.sessions import Sessions
from thunder_tune.values.anatomy import Anatomy
from thunder_tune.values.comparison import Comparison
from thunder_tune.values.job import Description, Setting
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.screening import ClassMeasurement
from thunder_tune.values.study import StudySpec, StudyState
from thunder_tune.values.trial import Role, TrialResult


class Database:
    """Studies and what came out of them.

    Only controllers write; any number of readers may poll meanwhile. Every method is one short
    transaction: it is stored when the method returns, or not at all. Values go in and out by
    value. Threads may share a database; each process opens its own.

    A server that goes away is waited for. Every method raises `StorageError` where the database
    fails, or its server does not come back, and `NotFoundError`, with the
    closest names, where a named study does not exist.
    """

    def __init__(self, sessions: Sessions) -> None:
        """Work on a database whose schema is up to date; users call `open`."""
        self._sessions = sessions

    @classmethod
    def open(cls, url: str | None = None, *, patience_s: float = PATIENCE_S) -> Database:
        """Open a database, creating or upgrading its tables.

        Args:
            url: SQLAlchemy URL or the path of an SQLite file; None: what the environment
                variable THUNDER_TUNE_STORAGE says, else a file in the user's data folder.
            patience_s: Seconds that every method waits for a server that went away; one that is
                not there to begin with is not waited for.

        Raises:
            StorageError: It cannot be opened or written, or its schema is newer than this version.
            MissingDependency: The driver of that kind of database is not installed.
        """
        sessions = Sessions(locate(url), patience_s=patience_s)
        try:
            schema.upgrade(sessions)
        except BaseException:
            sessions.close()
            raise
        return cls(sessions)

    @property
    def url(self) -> str:
        """SQLAlchemy URL with the password: to connect with, not to show."""
        return self._sessions.url.render_as_string(hide_password=False)

    @property
    def shown_url(self) -> str:
        """The URL without the password."""
        return shown(self._sessions.url)

    @property
    def outage(self) -> Outage:
        """Waits for the database's server: for whoever has connections of their own to it."""
        return self._sessions.outage

    def close(self) -> None:
        """Close all connections; may be called twice."""
        self._sessions.close()

    def create_study(self, spec: StudySpec) -> None:
        """Store a new study as running, or resume one that exists with the same setting.

        On resuming, budget, seed, sampler, limits and timing become those of `spec`; state and
        error stay as they are.

        Raises:
            ConflictError: The name exists with another model or setting; says what differs.
        """
        self._sessions.write(lambda session: studies.create(session, spec))

    def study(self, name: str) -> StudyRecord:
        """Return one study."""
        return self._sessions.read(lambda session: studies.record(session, name))

    def studies(self) -> list[StudySummary]:
        """Return a summary of every study, newest first."""
        return self._sessions.read(studies.summaries)

    def update_study(
        self,
        name: str,
        *,
        state: StudyState | None = None,
        error: str | None = None,
        spec: StudySpec | None = None,
    ) -> None:
        """Change what is given and leave the rest; an empty `error` clears it.

        Raises:
            ConflictError: `spec` has another name, model or setting.
        """
        self._sessions.write(
            lambda session: studies.update(session, name, state=state, error=error, spec=spec)
        )

    def save_description(self, study: str, description: Description) -> None:
        """Store what a worker found out; later results belong to its program and machine."""
        self._sessions.write(lambda session: studies.save_description(session, study, description))

    def description(self, study: str) -> Description | None:
        """Return the last description of a study, or None before the first."""
        return self._sessions.read(lambda session: studies.description(session, study))

    def lease(self, study: str) -> LeaseRecord | None:
        """Return who runs a study, or None; the study need not exist yet."""
        return self._sessions.read(lambda session: leases.record(session, study))

    def take_lease(
        self, study: str, owner: Owner, *, instead_of: LeaseRecord | None = None
    ) -> bool:
        """Make a process the one that runs a study, if nobody does.

        Args:
            study: That need not exist yet.
            owner: Runs it from now on, if this returns True.
            instead_of: The lease of an owner that is dead, which is given up unless that owner
                gave a sign of life since it was read.
        """
        return self._sessions.write(lambda session: leases.take(session, study, owner, instead_of))

    def beat(self, study: str, token: str) -> LeaseRecord | None:
        """Give a sign of life; returns the lease, or None where it is lost to another process."""
        return self._sessions.write(lambda session: leases.beat(session, study, token))

    def release_lease(self, study: str, token: str) -> None:
        """Give a lease back, if it is still held."""
        self._sessions.write(lambda session: leases.release(session, study, token))

    def ask_to_end(self, study: str, token: str) -> bool:
        """Ask the process that runs a study to end it; False: it does not any more."""
        return self._sessions.write(lambda session: leases.ask_to_end(session, study, token))

    def add_trial(self, study: str, result: TrialResult, *, token: str = "") -> int:
        """Store a baseline's or candidate's result with every repeat.

        Args:
            study: Where to.
            result: What to store.
            token: Of the lease under which the study is run; "": whoever runs it.

        Returns:
            Its number in the study, from 0 without gaps, whoever adds at the same time.

        Raises:
            ConflictError: That lease is lost: another process has taken the study over.
        """
        given: int | None = None

        def add(session: Session) -> int:
            nonlocal given
            if given is not None and trials.is_stored(session, study, given, result):
                return given  # it was committed when the connection was lost
            if token:
                leases.require(session, study, token)
            given = trials.add(session, study, result)
            return given

        return self._sessions.write(add)

    def trials(
        self, study: str, role: Role | None = None, numbers: Collection[int] | None = None
    ) -> list[TrialRecord]:
        """Return a study's results by number: all, or those of one role or of some numbers."""
        return self._sessions.read(lambda session: trials.of_study(session, study, role, numbers))

    def count(self, study: str) -> tuple[int, int]:
        """Return how many results a study has, and the last number (-1 for none)."""
        return self._sessions.read(lambda session: outlines.count(session, study))

    def outlines(self, study: str, after: int = -1, limit: int = 5000) -> list[Outlined]:
        """Return up to `limit` results after a number in outline, each with its assignment."""
        return self._sessions.read(lambda session: outlines.after(session, study, after, limit))

    def tallies(self) -> list[Tally]:
        """Count the trials of all studies by outcome."""
        return self._sessions.read(outlines.tallies)

    def machines(self) -> list[Machine]:
        """Return every machine that results were measured on, the one used last first."""
        return self._sessions.read(outlines.machines)

    def reusable_baselines(
        self, description: Description, setting: Setting
    ) -> dict[str, TrialResult]:
        """Return baselines that need not be measured again, by name.

        They have the same machine and versions, exact program, source, policies and metric, and
        are complete or failed by their nature: not in a crash, not with a lost worker, and not
        at a limit that has been changed since. The newest such result of each baseline counts.
        """
        return self._sessions.read(
            lambda session: trials.reusable_baselines(session, description, setting)
        )

    def save_screening(self, environment_key: str, found: Sequence[ClassMeasurement]) -> None:
        """Store choices of classes measured alone, for every study on that machine.

        Args:
            environment_key: Strict key of the machine and its versions.
            found: A choice that is stored already is replaced.
        """
        self._sessions.write(lambda session: screenings.save(session, environment_key, found))

    def screening(self, environment_key: str) -> list[ClassMeasurement]:
        """Return every choice of a class measured alone on a machine with its versions."""
        return self._sessions.read(lambda session: screenings.of_machine(session, environment_key))

    def save_comparison(self, study: str, comparison: Comparison) -> None:
        """Store a confirmation with every block of every round; earlier ones are kept."""
        self._sessions.write(lambda session: studies.save_comparison(session, study, comparison))

    def comparison(self, study: str) -> Comparison | None:
        """Return the last confirmation of a study, or None before the first."""
        return self._sessions.read(lambda session: studies.comparison(session, study))

    def save_recipe(self, study: str, recipe: Recipe, model_key: str = "") -> None:
        """Store a recipe as the newest of its study.

        Args:
            study: That found it.
            recipe: Stored once for each digest.
            model_key: Digest of model class, parameters and input signature, by which
                `find_recipes` finds it before any capture.
        """
        self._sessions.write(lambda session: recipes.save(session, study, recipe, model_key))

    def recipes(self, study: str | None = None) -> list[Recipe]:
        """Return the recipes of one study, or of all, newest first."""
        return self._sessions.read(lambda session: recipes.of_study(session, study))

    def save_anatomy(self, recipe: Recipe, anatomy: Anatomy) -> None:
        """Store what the program of a recipe with one shape consists of; the last one counts."""
        self._sessions.write(lambda session: recipes.save_anatomy(session, recipe, anatomy))

    def anatomy(self, recipe: Recipe) -> Anatomy | None:
        """Return what `save_anatomy` stored for a recipe with one shape, or None."""
        return self._sessions.read(lambda session: recipes.anatomy(session, recipe))

    def find_recipes(
        self,
        *,
        model_key: str | None = None,
        program_hash: str | None = None,
        program_loose_hash: str | None = None,
    ) -> list[Recipe]:
        """Return the recipes for which everything given holds, newest first.

        Args:
            model_key: As given to `save_recipe`.
            program_hash: Exact hash of a program that one of the recipe's plans is for.
            program_loose_hash: The same without shapes.
        """
        return self._sessions.read(
            lambda session: recipes.find(
                session,
                model_key=model_key,
                program_hash=program_hash,
                program_loose_hash=program_loose_hash,
            )
        )

    def export_lines(self, studies: Sequence[str]) -> list[str]:
        """Return studies with all that belongs to them as lines of JSON, see `transfer`."""
        return self._sessions.read(lambda session: list(transfer.lines_of(session, studies)))

    def import_lines(self, lines: Sequence[str]) -> list[str]:
        """Store the studies of such lines, all or none; returns their names.

        Raises:
            InputError: They are not such lines.
            ConflictError: A study of that name is stored here already.
        """
        return self._sessions.write(lambda session: transfer.take_in(session, lines))

    def collect(
        self,
        *,
        before: datetime | None = None,
        with_recipes: bool = False,
        is_rehearsal: bool = False,
    ) -> Collected:
        """Remove what nothing refers to, and old studies where asked.

        Args:
            before: Studies created before that go, unless somebody runs them; None: none.
            with_recipes: Those too that found a recipe.
            is_rehearsal: Only say what would be removed.
        """

        def work(session: Session) -> Collected:
            found = collecting.collect(session, before=before, with_recipes=with_recipes)
            if is_rehearsal:
                session.rollback()
            return found

        return self._sessions.write(work)
