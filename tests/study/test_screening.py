from __future__ import annotations

from random import Random

import pytest

from thunder_tune.study.composition import Composer, predictions
from thunder_tune.study.parts import Alone
from thunder_tune.study.plans import PlanLedger
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.values.screening import ClassMeasurement, class_choices, missing_choices
from thunder_tune.values.space import CUDA_GRAPHS, EXECUTOR, FUSER

FUSERS = ("inductor", "torch")


def alone(dimensions, ms):
    return [
        ClassMeasurement(class_id=d.name.partition(":")[2], choice=c, latency_ms=ms(d.name, c))
        for d in dimensions
        if d.name.startswith((EXECUTOR, FUSER))
        for c in d.choices
    ]


@pytest.fixture
def costly(costs):
    """Make every glue class cost more with its default, each class another amount."""

    def make(count, **changes):
        choices = {(f"{FUSER}glue-{i}", "torch"): 0.1 * (i + 1) for i in range(count)}
        return costs(choices=choices, **changes)

    return make


class TestPrediction:
    @pytest.fixture
    def space(self, dimensions):
        return dimensions(glue=6, anchors=2, graphs=True)

    @pytest.fixture
    def ledger(self, space):
        description = synthetic_description(space)
        return PlanLedger(description.program, description.space)

    def test_is_the_sum_of_the_classes(self, ledger, space):
        composer = Composer(ledger, alone(space, lambda name, choice: 1.0 + (choice == "torch")))
        start = ledger.composed({})
        torch = ledger.composed({f"{FUSER}glue-{i}": "torch" for i in range(6)})
        inductor = ledger.composed({f"{FUSER}glue-{i}": "inductor" for i in range(6)})
        assert composer.predict(torch) - composer.predict(inductor) == pytest.approx(6.0)
        assert composer.predict(start) == pytest.approx(composer.predict(torch))

    def test_the_first_composition_is_the_best_of_each_class(self, ledger, space):
        fast = {d.name: Random(d.name).choice(d.choices) for d in space}
        composer = Composer(ledger, alone(space, lambda n, c: 1.0 if c == fast[n] else 2.0))
        best = composer.likely_best(ledger.composed({}), 3)
        local = [d.name for d in space if d.name.startswith((EXECUTOR, FUSER))]
        assert {name: best[0][name] for name in local} == {name: fast[name] for name in local}
        assert len({tuple(b.values()) for b in best}) == 3

    def test_what_was_measured_end_to_end_corrects_it(self, ledger, space):
        """A choice that cannot be measured alone, and one that is worse in a program."""
        composer = Composer(ledger, alone(space, lambda name, choice: 1.0))

        def true_ms(assignment):
            graphs = -2.0 * (assignment[CUDA_GRAPHS] == "whole")
            return 12.0 + graphs + 0.5 * (assignment[f"{FUSER}glue-3"] == "inductor")

        random = Random(0)
        for _ in range(60):
            drawn = {d.name: random.choice(d.choices) for d in ledger.open_dimensions}
            composer.learn(ledger.composed(drawn), true_ms(ledger.composed(drawn)))
        unseen = ledger.composed({CUDA_GRAPHS: "whole", f"{FUSER}glue-3": "torch"})
        assert composer.predict(unseen) == pytest.approx(10.0, rel=0.02)
        assert composer.likely_best(ledger.composed({}), 1)[0][CUDA_GRAPHS] == "whole"

    def test_a_choice_that_failed_alone_is_avoided(self):
        found = Alone(
            [
                ClassMeasurement(class_id="linear-0", choice="torch", latency_ms=2.0),
                ClassMeasurement(class_id="linear-0", choice="broken", failure="no kernel"),
            ]
        )
        assert found.ms("linear-0", "broken") > found.ms("linear-0", "torch")
        assert not Alone([]).knows("linear-0")

    def test_a_kernel_saves_what_the_site_took_without_it(self):
        known = {"none": 3.0, "kernel": 2.0}
        site = [ClassMeasurement(class_id="s", choice=c, latency_ms=v) for c, v in known.items()]
        assert Alone(site).saved_ms("s", "kernel") == 1.0
        assert Alone(site[1:]).saved_ms("s", "kernel") == 0.0
        assert Alone(site).torch_ms("s") == Alone(site).typical_ms("s") == 2.5

    def test_nothing_measured_predicts_nothing(self, ledger):
        assert not Composer(ledger, []).can_predict


class TestStudy:
    def test_screens_before_the_search_and_finds_the_best_at_once(
        self, study, spec, dimensions, costly, database, observer
    ):
        space = dimensions(glue=12, anchors=0)
        outcome, pool = study(spec(screening=True, trials=12), space, costly(12))
        assert sum(len(job.choices) for job in pool.screened) == 12
        searched = [r for _, r in observer.results if r.role == "search"]
        best = min(searched, key=lambda r: r.timing.latency_ms)
        glue = [v for k, v in best.candidate.assignment.items() if k.startswith(FUSER)]
        assert glue == ["inductor"] * 12
        assert outcome.state == "done"
        assert any("24 measured now" in text for text in observer.notices)

    def test_another_study_reuses_what_is_known(self, study, spec, dimensions, costly, observer):
        study(spec("one", screening=True, trials=2), dimensions(glue=5, anchors=0), costly(5))
        _, pool = study(
            spec("two", screening=True, trials=2), dimensions(glue=7, anchors=0), costly(7)
        )
        assert [set(job.choices) for job in pool.screened] == [{"glue-5", "glue-6"}]
        assert any("10 known from before" in text for text in observer.notices)

    @pytest.mark.parametrize("screening", [None, False])
    def test_is_left_out_on_a_cpu_and_on_request(self, study, spec, dimensions, costly, screening):
        _, pool = study(spec(screening=screening, trials=2), dimensions(), costly(2))
        assert pool.screened == []

    def test_takes_no_more_than_its_share_of_the_time(
        self, study, spec, dimensions, costly, observer
    ):
        asked = spec(screening=True, trials=3, time_budget_s=300.0)
        _, pool = study(asked, dimensions(glue=60, anchors=0), costly(60))
        assert 0 < len(pool.screened) < 15
        assert any("left out for want of time" in text for text in observer.notices)

    def test_predictions_come_from_the_trials_before(
        self, study, spec, dimensions, costly, database
    ):
        asked = spec(screening=True, trials=15)
        outcome, _ = study(asked, dimensions(glue=6, anchors=0), costly(6))
        known = database.screening(outcome.description.fingerprint.strict_key)
        trials = database.trials("study")
        found = predictions(outcome.description, known, trials)
        searched = [t for t in trials if t.result.role == "search"]
        assert set(found) == {t.number for t in searched}
        last = searched[-1]
        assert found[last.number] == pytest.approx(last.result.timing.latency_ms, rel=0.1)


def test_only_what_is_missing_is_measured(dimensions):
    space = synthetic_description(dimensions(glue=1, anchors=1)).space
    assert class_choices(space) == {
        "glue-0": ("torch", "inductor"),
        "linear-0": ("torch", "cudnn"),
    }
    known = [ClassMeasurement(class_id="glue-0", choice=c) for c in ("torch", "inductor")]
    known.append(ClassMeasurement(class_id="linear-0", choice="torch"))
    assert missing_choices(space, known) == {"linear-0": ("cudnn",)}
