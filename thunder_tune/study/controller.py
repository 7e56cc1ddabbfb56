"""The controller: one study from its description to its recipes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

from thunder_tune.errors import ConflictError, ThunderTuneError
from thunder_tune.storage import Database
from thunder_tune.study import confirmation
from thunder_tune.study.baselines import baseline_candidates, baseline_name
from thunder_tune.study.bench import EXTRA_ROUNDS, compare_now
from thunder_tune.study.budget import Budget, Clock
from thunder_tune.study.dispatch import Dispatcher, Flight
from thunder_tune.study.journal import Journal
from thunder_tune.study.lease import Lease, holding
from thunder_tune.study.observer import Observer, Status
from thunder_tune.study.optuna_record import OptunaRecord
from thunder_tune.study.optuna_strategy import OptunaStrategy
from thunder_tune.study.plans import PlanLedger
from thunder_tune.study.pool import WorkerPool
from thunder_tune.study.recipes import make_recipe
from thunder_tune.study.resume import check_resumable
from thunder_tune.study.samplers import check_sampler
from thunder_tune.study.screening import Screener
from thunder_tune.study.shapes import carried, check_shapes_differ
from thunder_tune.study.strategy import Strategy
from thunder_tune.study.verdict import judge, measured
from thunder_tune.study.waiting import call_while_ticking
from thunder_tune.values.comparison import Comparison
from thunder_tune.values.job import DescribeJob, Description
from thunder_tune.values.recipe import TunedPlan
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.study import Outcome, StudySpec, StudyState, TrialCounts, Winner
from thunder_tune.values.trial import TrialResult

TOP = 5
HOPELESS = 10
"""So many trials failed and nothing ever measured: the search gives up."""


def run_study(
    spec: StudySpec,
    *,
    pool: WorkerPool,
    database: Database,
    observer: Observer,
    clock: Clock = time.monotonic,
    others: Sequence[TunedPlan] = (),
    lease: Lease | None = None,
) -> Outcome:
    """Run a study, or go on with one of that name until it has the trials asked for.

    Every finished trial is stored before anything else happens to it. Ctrl-C ends the study at
    any moment, and so does `thunder-tune cancel` from anywhere: what runs is killed and kept for
    the next run, and the outcome says "interrupted".

    Args:
        spec: What is asked.
        pool: Runs the jobs; the caller closes it.
        database: Where everything is stored.
        observer: Told what happens.
        clock: Source of time for budgets, in seconds.
        others: Plans for other input shapes of the model: the search begins with them.
        lease: Of the study, where the caller holds it already.

    Returns:
        The outcome, with state "failed" and a reason where nothing could be measured.

    Raises:
        InputError: The sampler is unknown, or the inputs are those of one of `others`.
        ConflictError: The name belongs to a study of another model, setting, program or device,
            or another process runs it.
        WorkerError: The pool is broken; the study is marked as failed and can be resumed.
        StorageError: The database cannot be written.
    """
    check_sampler(spec.sampler)
    mine = nullcontext(lease) if lease else holding(database, spec.name, notice=observer.on_notice)
    with mine as held:
        database.create_study(spec)
        run = _Run(
            spec,
            pool=pool,
            database=database,
            observer=observer,
            clock=clock,
            others=others,
            lease=held,
        )
        return run.run()


class _Run:
    """One run of a study; its stages as methods, in order."""

    def __init__(
        self,
        spec: StudySpec,
        *,
        pool: WorkerPool,
        database: Database,
        observer: Observer,
        clock: Clock,
        others: Sequence[TunedPlan],
        lease: Lease,
    ) -> None:
        self._spec = spec
        self._lease = lease
        self._others = others
        self._pool = pool
        self._database = database
        self._observer = observer
        self._clock = clock
        self._budget = Budget(time_s=spec.time_budget_s, clock=clock)
        self._journal = Journal(spec.name, database=database, observer=observer, token=lease.token)
        self._dispatcher = Dispatcher(
            spec.setting, pool=pool, journal=self._journal, budget=self._budget, clock=clock
        )
        self._stage = "describe"
        self._stopped = ""
        self._description: Description | None = None
        self._strategy: Strategy | None = None
        self._optuna: OptunaRecord | None = None

    def run(self) -> Outcome:
        try:
            outcome = self._run()
            self._finish(outcome.state, outcome.error)
        except KeyboardInterrupt:
            if self._lease.is_cancelled:
                self._notice("cancelled by thunder-tune cancel")
            self._keep_what_is_done()
            outcome = self._outcome("interrupted", stopped="interrupted")
            self._finish("interrupted", "")
        except ConflictError:  # nothing of the stored study is changed
            raise
        except ThunderTuneError as error:
            with suppress(ThunderTuneError):
                self._finish("failed", str(error))
            raise
        finally:
            if self._optuna is not None:
                self._optuna.close()
        return outcome

    def _run(self) -> Outcome:
        description = self._describe()
        if description.failure is not None:
            return self._outcome("failed", error=description.failure.message, stopped="failed")
        ledger = PlanLedger(description.program, description.space)
        self._measure(ledger, description)
        return self._confirm(description)

    # Stage 0: what the model and the machine are.

    def _describe(self) -> Description:
        self._tell_status()
        before = self._database.description(self._spec.name)
        job = DescribeJob(setting=self._spec.setting)
        description = call_while_ticking(lambda: self._pool.describe(job), self._tick)
        is_known = description.failure is None  # else what an earlier run found stays
        if is_known and before is not None and before.failure is None:
            self._notice(check_resumable(self._spec.name, before, description))
        if is_known:
            check_shapes_differ(description, self._others)
        self._database.update_study(self._spec.name, state="running", error="")
        if is_known:
            self._database.save_description(self._spec.name, description)
        self._description = description
        self._journal.environment_key = description.fingerprint.strict_key
        self._observer.on_description(description)
        program = description.program
        if description.failure is None and not program.is_captured:
            reason = f" ({program.reason})" if program.reason else ""
            self._notice(
                f"no front end could capture the model{reason}: only whole-program back ends "
                "are tried"
            )
        return description

    # Stage 1: what a user would otherwise run, and the search as soon as workers are free.

    def _measure(self, ledger: PlanLedger, description: Description) -> None:
        self._stage = "baselines"
        wanted = baseline_candidates(ledger, self._spec.setting.source.device)
        known = self._reuse_baselines(description)
        for candidate in wanted.values():
            ledger.take(candidate.plan_key)  # never for the search, measured or not
        baselines = deque(candidate for name, candidate in wanted.items() if name not in known)
        strategy = self._strategy = self._new_strategy(ledger, description)
        screener = self._new_screener(ledger, description)

        def next_job() -> Flight | ScreenJob | None:
            if baselines:
                is_late = self._budget.is_spent
                return None if is_late else Flight(candidate=baselines.popleft(), role="baseline")
            if screener is not None and (job := screener.next_job()) is not None:
                self._stage = "screening"
                return job
            compose()
            self._stage = "search"
            self._stopped = self._why_stop()
            proposal = None if self._stopped else strategy.ask()
            if proposal is None:
                self._stopped = self._stopped or "exhausted"
                return None
            return Flight(candidate=proposal.candidate, role="search", ticket=proposal.ticket)

        def learn(flight: Flight, number: int, result: TrialResult) -> None:
            if flight.role == "search":
                strategy.tell(flight.ticket, number, result)
            self._reserve()

        def tick() -> bool:
            self._tick()
            return strategy.catch_up()

        def screened(screening: Screening) -> None:
            if screener is not None:
                screener.learn(screening)

        def compose() -> None:
            nonlocal screener
            if screener is not None and not self._dispatcher.is_screening:
                strategy.screened(screener.known)
                self._notice(screener.summary())
                screener = None

        cancelled = self._dispatcher.drive(
            next_job=next_job, learn=learn, screened=screened, tick=tick
        )
        while tick():
            pass
        cut_short = [flight for flight in cancelled if flight.role == "search"]
        for flight in cut_short:
            strategy.postpone(flight.ticket)
        missed = [*baselines, *(f.candidate for f in cancelled if f.role == "baseline")]
        self._tell_what_is_missing(
            [name for name, candidate in wanted.items() if candidate in missed], len(cut_short)
        )

    def _new_strategy(self, ledger: PlanLedger, description: Description) -> Strategy:
        self._optuna = OptunaRecord(
            url=self._database.url,
            study=self._spec.name,
            space=description.space,
            outage=self._database.outage,
        )
        return OptunaStrategy(
            ledger=ledger,
            sampler=self._spec.sampler,
            seed=self._spec.seed,
            workers=self._pool.capacity,
            history=[r for r in self._journal.records if r.result.role == "search"],
            record=self._optuna,
            first=carried(self._others, ledger, self._spec.setting.source.device),
        )

    def _new_screener(self, ledger: PlanLedger, description: Description) -> Screener | None:
        if not self._spec.screens or not ledger.open_dimensions:
            return None
        known = self._database.screening(description.fingerprint.strict_key)
        return Screener(self._spec.setting, description, known=known, budget=self._budget)

    def _reuse_baselines(self, description: Description) -> dict[str, TrialResult]:
        """Return the baselines that need no measuring, those of other studies stored here too."""
        found = self._database.reusable_baselines(description, self._spec.setting)
        borrowed = {n: r for n, r in found.items() if not self._journal.contains(r)}
        for result in borrowed.values():
            self._journal.store(result)
        if borrowed:
            self._notice(
                f"baselines reused from an earlier study on this machine: {', '.join(borrowed)}"
            )
        self._reserve()
        return found

    def _tell_what_is_missing(self, baselines: Sequence[str], cut_short: int) -> None:
        if baselines:
            names = ", ".join(baselines)
            self._notice(f"the time budget left no time for the baselines {names}")
        if cut_short:
            self._stopped = "time"
            self._notice(
                f"{cut_short} trial{'s' * (cut_short > 1)} under way gave way to the "
                "confirmation; a resumed study measures what was cut short first"
            )
        if self._stopped == "exhausted":
            self._notice(
                f"the search space is exhausted after {self._counts().finished} trials: every "
                "distinct plan is measured"
            )

    def _why_stop(self) -> str:
        counts = self._counts()
        if counts.finished + self._dispatcher.under_way("search") >= self._spec.trials:
            return "trials"
        if not self._budget.allows_another:
            return "time"
        is_hopeless = counts.failed >= HOPELESS and self._journal.best_ms() is None
        return "failed" if is_hopeless else ""

    # Stage 2: the confirmation.

    def _confirm(self, description: Description) -> Outcome:
        self._stage = "confirmation"
        self._tell_status()
        chosen = confirmation.entrants(self._journal.records, self._journal.environment_key)
        if not chosen:
            return self._outcome("failed", error=self._why_nothing(), stopped="failed")
        plan = confirmation.schedule(chosen, self._budget.left_s, at_once=self._pool.capacity)
        self._notice(plan.notice)
        comparison = compare_now(
            self._spec.setting,
            plan.contenders,
            pool=self._pool,
            observer=self._observer,
            rounds=confirmation.ROUNDS,
            extra_rounds=EXTRA_ROUNDS,
            blocks=plan.blocks,
            calls=plan.calls,
            timeout_s=plan.timeout_s,
            seed=self._spec.seed,
            clock=self._clock,
            tick=self._tick,
        )
        self._database.save_comparison(self._spec.name, comparison)
        if not any(c.is_baseline for c in comparison.contenders):
            self._notice("no baseline could be measured: nothing to compare the best with")
        return self._conclude(comparison, description)

    def _conclude(self, comparison: Comparison, description: Description) -> Outcome:
        verdicts = judge(comparison, description.program, self._spec.setting.policies[0])
        if verdicts.best is None:
            failed = next((s.failure for s in comparison.standings if s.failure), None)
            reason = f"{failed.kind}: {failed.message}" if failed else "accuracy policy"
            error = f"no program passed the confirmation in fresh processes ({reason})"
            return self._outcome("failed", error=error, comparison=comparison, stopped="failed")
        composed = self._save(verdicts.best_composed, comparison, description)
        is_same = verdicts.best == verdicts.best_composed
        best = composed if is_same else self._save(verdicts.best, comparison, description)
        outcome = self._outcome("done", comparison=comparison, stopped=self._stopped)
        others = measured(self._journal.records, without=comparison.contenders)
        top = (*verdicts.ranked, *others)[:TOP]
        return replace(outcome, best=best, best_composed=composed, top=top)

    def _save(
        self, winner: Winner | None, comparison: Comparison, description: Description
    ) -> Winner | None:
        if winner is None:
            return None
        recipe = make_recipe(
            study=self._spec.name,
            setting=self._spec.setting,
            description=description,
            comparison=comparison,
            winner=winner,
            trials=self._counts().finished,
        )
        self._database.save_recipe(self._spec.name, recipe, model_key=description.model_key)
        return replace(winner, digest=recipe.digest)

    def _why_nothing(self) -> str:
        failed = [r for r in self._journal.results() if r.failure is not None]
        if not failed:
            return "nothing was measured: the time budget ended before the first baseline did"
        first = failed[0]
        name = baseline_name(first) if first.role == "baseline" else "the first trial"
        message = first.failure.message if first.failure else ""
        return f"nothing could be measured: all {len(failed)} attempts failed; {name}: {message}"

    # Ends, and what others are told.

    def _keep_what_is_done(self) -> None:
        killed = self._dispatcher.abandon()
        if self._strategy is not None:
            for flight in killed:
                if flight.role == "search":
                    self._strategy.postpone(flight.ticket)

    def _finish(self, state: StudyState, error: str) -> None:
        self._lease.renew()
        self._database.update_study(self._spec.name, state=state, error=error)
        self._stage = "done"
        self._tell_status()

    def _outcome(
        self,
        state: StudyState,
        *,
        stopped: str,
        error: str = "",
        comparison: Comparison | None = None,
    ) -> Outcome:
        return Outcome(
            study=self._spec.name,
            state=state,
            description=self._description,
            captures=self._journal.captures(),
            counts=self._counts(),
            comparison=comparison,
            top=measured(self._journal.records)[:TOP],
            error=error,
            stopped=stopped,
        )

    def _reserve(self) -> None:
        records, key = self._journal.records, self._journal.environment_key
        reserve_s = confirmation.estimate_s(records, key, at_once=self._pool.capacity)
        self._budget.reserve(reserve_s)

    def _counts(self) -> TrialCounts:
        return self._journal.counts(
            requested=self._spec.trials, exhausted=self._stopped == "exhausted"
        )

    def _tick(self) -> None:
        self._lease.check()
        self._tell_status()

    def _tell_status(self) -> None:
        counts, left_s = self._counts(), self._budget.left_s
        if self._stage in ("search", "confirmation"):
            trials = counts.requested - counts.finished if self._stage == "search" else 0
            left_s = self._budget.forecast_s(trials, self._pool.capacity)
        self._observer.on_status(
            Status(
                stage=self._stage,
                counts=counts,
                best_ms=self._journal.best_ms(),
                best_baseline_ms=self._journal.best_ms("baseline"),
                elapsed_s=self._budget.elapsed_s,
                left_s=0.0 if self._stage == "done" else left_s,
            )
        )

    def _notice(self, text: str) -> None:
        if text:
            self._observer.on_notice(text)
