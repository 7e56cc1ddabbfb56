from __future__ import annotations

import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_tune.errors import InputError, MissingDependency, StorageError
from thunder_tune.storage import TrialRecord
from thunder_tune.study.history import encode
from thunder_tune.study.optuna_record import OptunaRecord
from thunder_tune.study.optuna_strategy import OptunaStrategy
from thunder_tune.study.plans import PlanLedger
from thunder_tune.study.samplers import SAMPLERS, check_sampler, make_sampler
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.values.space import (
    COMPOSED,
    CUDA_GRAPHS,
    EXECUTOR,
    FUSER,
    PROGRAM,
    Dimension,
    SearchSpace,
)
from thunder_tune.values.trial import Failure, Timing, TrialResult

GLUE_0, GLUE_1, LINEAR = f"{FUSER}glue-0", f"{FUSER}glue-1", f"{EXECUTOR}linear-0"


def ledger_of(dimensions):
    description = synthetic_description(dimensions)
    return PlanLedger(description.program, description.space)


def measured(candidate, latency_ms):
    timing = Timing(
        samples_ms=(latency_ms,), latency_ms=latency_ms, ci95_ms=(latency_ms, latency_ms)
    )
    return TrialResult(candidate=candidate, role="search", state="complete", timing=timing)


def failed(candidate):
    failure = Failure(kind="compile", phase="compile", message="no kernel")
    return TrialResult(candidate=candidate, role="search", state="failed", failure=failure)


def strategy_of(ledger, **options):
    return OptunaStrategy(
        **{"ledger": ledger, "sampler": "tpe", "seed": 0, "workers": 1, **options}
    )


def drive(strategy, trials, latency_of):
    asked = []
    for number in range(trials):
        proposal = strategy.ask()
        if proposal is None:
            break
        asked.append(proposal.candidate)
        latency_ms = latency_of(proposal.candidate.assignment)
        result = failed(asked[-1]) if latency_ms is None else measured(asked[-1], latency_ms)
        strategy.tell(proposal.ticket, number, result)
        strategy.catch_up()
    return asked


class TestStrategy:
    def test_the_same_seed_asks_the_same(self, dimensions):
        space = dimensions(glue=6, anchors=2)
        runs = [drive(strategy_of(ledger_of(space)), 25, lambda a: len(str(a))) for _ in range(2)]
        assert runs[0] == runs[1]

    def test_a_resumed_strategy_does_not_repeat_itself(self, dimensions):
        space = dimensions(glue=8)
        first = drive(strategy_of(ledger_of(space), sampler="random"), 20, lambda a: 1.0)
        history = [TrialRecord(number=i, result=measured(c, 1.0)) for i, c in enumerate(first)]
        resumed = strategy_of(ledger_of(space), sampler="random", history=history)
        again = drive(resumed, 20, lambda a: 1.0)
        assert not {c.plan_key for c in first} & {c.plan_key for c in again}

    def test_several_may_be_pending(self, dimensions):
        strategy = strategy_of(ledger_of(dimensions(glue=5)), workers=8)
        proposals = [strategy.ask() for _ in range(30)]
        assert len({p.candidate.plan_key for p in proposals}) == 30
        assert len({p.ticket for p in proposals}) == 30
        for number, p in enumerate(reversed(proposals)):
            strategy.tell(p.ticket, number, measured(p.candidate, 1.0))
        assert strategy.ask() is not None

    def test_failed_candidates_repel(self, dimensions):
        # Every candidate with the failing choice fails: few of the later ones may make it.
        space = dimensions(glue=9)
        asked = drive(
            strategy_of(ledger_of(space)),
            60,
            lambda a: None if a.get(GLUE_0) == "inductor" else 10.0 + (a.get(GLUE_1) == "torch"),
        )
        late = [c.assignment[GLUE_0] == "inductor" for c in asked[30:]]
        assert sum(late) < len(late) / 4

    def test_no_effect_choices_do_not_make_new_candidates(self, dimensions):
        space = (
            *dimensions(glue=2, anchors=1),
            Dimension(name="boundary:a", family="boundary", choices=tuple("abcdefgh")),
        )
        asked = drive(strategy_of(ledger_of(space)), 100, lambda a: 1.0)
        composed = [c for c in asked if c.assignment[PROGRAM] == COMPOSED]
        assert len(composed) == len({c.plan_key for c in composed}) == 8

    def test_a_large_space_with_few_plans_is_found_exhausted(self, dimensions):
        idle = tuple(
            Dimension(name=f"boundary:{i}", family="boundary", choices=tuple("abcd"))
            for i in range(8)
        )
        asked = drive(strategy_of(ledger_of((*dimensions(), *idle))), 100, lambda a: 1.0)
        assert sum(c.assignment[PROGRAM] == COMPOSED for c in asked) == 8

    def test_nothing_is_left_after_exhaustion_until_results_come_or_not(self, dimensions):
        strategy = strategy_of(ledger_of(dimensions(glue=1, anchors=0)))
        first = [strategy.ask() for _ in range(6)]  # four back ends, two composed
        assert None not in first
        assert strategy.ask() is None
        strategy.tell(first[-1].ticket, 0, measured(first[-1].candidate, 1.0))
        assert strategy.ask() is None

    def test_says_nothing(self, dimensions, capsys, caplog, recwarn):
        with caplog.at_level(logging.INFO):
            drive(strategy_of(ledger_of(dimensions(glue=5)), workers=2), 20, lambda a: 1.0)
        captured = capsys.readouterr()
        assert (captured.out, captured.err, caplog.records) == ("", "", [])
        assert [w for w in recwarn if "optuna" in str(w.category).lower()] == []


class TestMoves:
    def test_change_one_idea_of_the_best_everywhere(self, dimensions):
        glue = tuple(f"{FUSER}glue-{i}" for i in range(4))
        linears = tuple(f"{EXECUTOR}linear-{i}" for i in range(6))
        fusers = ("inductor", "nvfuser", "torch")
        space = (
            *dimensions(glue=0, anchors=0, whole=()),
            *(Dimension(name=name, family="fuser", choices=fusers) for name in glue),
            *(
                Dimension(name=name, family="executor", choices=("inductor", "torch", "fast"))
                for name in linears
            ),
        )

        def latency_of(assignment):  # 3**10 assignments, the best of which is uniform
            fast = sum(assignment[name] == "fast" for name in linears)
            return 10.0 - fast - 0.1 * sum(assignment[name] == "nvfuser" for name in glue)

        asked = drive(strategy_of(ledger_of(space)), 12, latency_of)
        assert min(latency_of(c.assignment) for c in asked) == pytest.approx(3.6)

    def test_the_sampler_goes_on_where_nothing_was_ever_measured(self, dimensions):
        strategy = strategy_of(ledger_of(dimensions(glue=6)))
        for number in range(30):
            proposal = strategy.ask()
            strategy.tell(proposal.ticket, number, failed(proposal.candidate))


class TestSamplers:
    @pytest.mark.parametrize("name", sorted(set(SAMPLERS) - {"gp"}))
    def test_are_made_by_name(self, name, dimensions):
        assert isinstance(make_sampler(name, seed=1, workers=2), optuna.samplers.BaseSampler)
        asked = drive(strategy_of(ledger_of(dimensions(glue=6)), sampler=name), 30, lambda a: 1.0)
        assert len({c.plan_key for c in asked}) == 30

    def test_unknown_ones_are_listed(self):
        with pytest.raises(InputError, match="unknown sampler 'cmaes': use one of tpe, random"):
            check_sampler("cmaes")

    def test_gp_says_what_it_needs(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy", None)
        with pytest.raises(MissingDependency, match="pip install scipy"):
            check_sampler("gp")


class TestLedger:
    @settings(max_examples=25, deadline=None)
    @given(
        sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
        idle=st.integers(1, 3),
        seed=st.integers(0, 99),
    )
    def test_draws_every_plan_once(self, sizes, idle, seed):
        space = [
            Dimension(name=f"{FUSER}g{i}", family="fuser", choices=tuple("abcd"[:n]))
            for i, n in enumerate(sizes)
        ]
        space.append(Dimension(name="boundary:x", family="boundary", choices=tuple("xyz"[:idle])))
        ledger, random = ledger_of(space), Random(seed)
        drawn = []
        while (candidate := ledger.unseen(random)) is not None:
            drawn.append(candidate.plan_key)
            ledger.take(candidate.plan_key)
        expected = 1
        for n in sizes:
            expected *= n
        assert len(drawn) == len(set(drawn)) == expected

    def test_a_neighbour_changes_one_or_two_choices(self, dimensions):
        ledger = ledger_of(dimensions(glue=8))
        start = ledger.composed({})
        for seed in range(20):
            near = ledger.neighbour(start, Random(seed))
            assert sum(near.assignment[n] != start[n] for n in start) in (1, 2)

    def test_no_neighbour_where_all_are_taken(self, dimensions):
        ledger = ledger_of(dimensions(glue=1, anchors=0))
        for fuser in ("torch", "inductor"):
            ledger.take(ledger.candidate(ledger.composed({GLUE_0: fuser})).plan_key)
        assert ledger.neighbour(ledger.composed({}), Random(0)) is None


class TestHistory:
    def test_a_new_dimension_gets_the_choice_without_effect(self, dimensions):
        old = ledger_of(dimensions()).candidate({GLUE_0: "inductor", LINEAR: "cudnn"})
        grown = ledger_of(dimensions(graphs=True, fusers=("nvfuser", "inductor", "torch")))
        encoded = encode(grown, old)
        assert encoded[CUDA_GRAPHS] == "none"
        assert encoded[GLUE_1] == "torch"
        assert grown.candidate(encoded).plan_key == old.plan_key

    def test_a_choice_that_is_gone_leaves_the_trial_out(self, dimensions):
        old = ledger_of(dimensions()).candidate({GLUE_0: "inductor"})
        assert encode(ledger_of(dimensions(fusers=("torch", "nvfuser"))), old) is None

    def test_a_back_end_is_kept_while_it_is_offered(self, dimensions):
        old = ledger_of(dimensions()).candidate({PROGRAM: "thunder"})
        assert encode(ledger_of(dimensions()), old) == {PROGRAM: "thunder"}
        assert encode(ledger_of(dimensions(whole=("eager",))), old) is None

    def test_old_trials_inform_a_grown_space(self, dimensions):
        old = ledger_of(dimensions(glue=6))
        fast = {f"{FUSER}glue-{i}": "inductor" for i in range(6)}
        candidates = [old.candidate(old.composed({**fast, n: "torch"})) for n in fast]
        history = [
            TrialRecord(number=i, result=measured(c, 5.0 + i)) for i, c in enumerate(candidates)
        ]
        grown = ledger_of(dimensions(glue=6, fusers=("torch", "inductor", "nvfuser")))
        strategy = strategy_of(grown, history=history)
        asked = drive(strategy, 60, lambda a: 50.0)
        late = [c.assignment for c in asked[30:] if c.assignment[PROGRAM] == COMPOSED]
        share = sum(a[n] == "inductor" for a in late for n in fast) / (6 * len(late))
        assert share > 0.5  # chance would give a third


class TestRecord:
    def test_writes_finished_trials(self, database, dimensions):
        ledger = ledger_of(dimensions())
        record = OptunaRecord(url=database.url, study="s", space=ledger.space)
        strategy = strategy_of(ledger, record=record)
        drive(strategy, 9, lambda a: None if a.get(LINEAR) == "cudnn" else 3.0)
        record.close()
        seen = optuna.load_study(study_name=record.name, storage=database.url)
        assert record.name == f"s@{ledger.space.key[:12]}"
        states = [t.state.name for t in seen.trials]
        assert len(states) == 9
        assert set(states) == {"COMPLETE", "PRUNED"}
        assert seen.best_value == 3.0
        pruned = next(t for t in seen.trials if t.state.name == "PRUNED")
        assert pruned.user_attrs["failure"] == "compile: no kernel"

    def test_adds_what_is_missing_once(self, database, dimensions):
        ledger = ledger_of(dimensions())
        record = OptunaRecord(url=database.url, study="s", space=ledger.space)
        candidate = ledger.candidate(ledger.composed({}))
        trials = [(7, candidate.assignment, measured(candidate, 2.0))]
        record.sync(trials)
        record.sync(trials)
        record.close()
        seen = optuna.load_study(study_name=record.name, storage=database.url)
        assert [t.user_attrs["thunder_tune_trial"] for t in seen.trials] == [7]

    def test_gives_back_what_was_postponed_once(self, database, dimensions):
        ledger = ledger_of(dimensions())
        record = OptunaRecord(url=database.url, study="s", space=ledger.space)
        assignment = ledger.composed({GLUE_0: "inductor"})
        record.postpone(assignment)
        assert record.take_postponed() == [assignment]
        assert record.take_postponed() == []
        record.close()

    def test_says_in_one_line_that_it_cannot_open(self, tmp_path):
        url = f"sqlite:///{tmp_path / 'missing' / 'x.db'}"
        space = SearchSpace(dimensions=())
        with pytest.raises(StorageError, match=r"x\.db cannot be created: .* is not a folder"):
            OptunaRecord(url=url, study="s", space=space)

    def test_controllers_may_open_a_new_database_together(self, any_url):
        space, ready = SearchSpace(dimensions=()), threading.Barrier(4)

        def open_and_close(name):
            ready.wait()
            OptunaRecord(url=any_url, study=name, space=space).close()

        with ThreadPoolExecutor(4) as executor:
            assert list(executor.map(open_and_close, "abcd")) == [None] * 4
