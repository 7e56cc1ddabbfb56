"""What every database must do, as tests to inherit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from thunder_tune.errors import ConflictError, NotFoundError
from thunder_tune.storage import Database, LeaseRecord, Owner
from thunder_tune.storage.documents import encode
from thunder_tune.testing.sample_values import (
    MACHINE,
    make_anatomy,
    make_comparison,
    make_description,
    make_program,
    make_recipe,
    make_result,
    make_setting,
    make_spec,
    trial_results,
)
from thunder_tune.values.codec import to_data
from thunder_tune.values.job import Description, Limits, Setting
from thunder_tune.values.program import Program
from thunder_tune.values.trial import (
    Candidate,
    TrialResult,
)

FEW = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
OWNER = Owner(token="t1", host="a", machine="m", process_id=1, process_started=1.5)
HEIR = Owner(token="t2", host="b", machine="m", process_id=2, process_started=2.5)


def written(value: object) -> str:
    """Return a value as text that is equal for equal values, NaN included."""
    return encode(to_data(value))


def add_many(url: str, study: str, writer: str, count: int) -> None:
    """Open the database and add `count` numbered results of one writer."""
    database = Database.open(url)
    for i in range(count):
        database.add_trial(study, replace(make_result(), worker=writer, process_id=i))
    database.close()


class DatabaseContract:
    """Inherit, and give a fixture `database` that opens an empty database for each test."""

    def test_a_study_comes_back(self, database: Database) -> None:
        """All fields of a specification are kept."""
        spec = make_spec(
            "a b ü", setting=make_setting(metric=("m:f", 0.5), policies=("same", "low")), seed=3
        )
        database.create_study(spec)
        record = database.study("a b ü")
        assert (record.spec, record.state, record.error) == (spec, "running", "")
        assert record.created_at.utcoffset() is not None

    def test_resuming_takes_the_new_budget(self, database: Database) -> None:
        """Budget, seed, limits and log folder may change; state stays."""
        database.create_study(make_spec(trials=5))
        created_at = database.study("study").created_at
        database.update_study("study", state="interrupted")
        again = make_spec(
            trials=9,
            time_budget_s=60.0,
            setting=make_setting(limits=Limits(check_s=1.0), log_folder="elsewhere"),
        )
        database.create_study(again)
        record = database.study("study")
        assert (record.spec, record.state) == (again, "interrupted")
        assert record.created_at == created_at

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"name": "vit_b_16"}, "model mlp, not vit_b_16"),
            ({"dtype": "bfloat16"}, "dtype float32, not bfloat16"),
            ({"batch_size": 8}, "batch size 1, not 8"),
            ({"mode": "train"}, "mode inference, not train"),
            ({"policies": ("same", "low")}, "policies same, not same low"),
            ({"preset": "quick"}, "preset inference, not quick"),
            ({"metric": ("m:f", 1.0)}, r"metric none, not m:f 1\.0"),
        ],
    )
    def test_another_setting_is_a_conflict(
        self, database: Database, changes: dict[str, Any], said: str
    ) -> None:
        """The message says what differs, and the stored study is untouched."""
        database.create_study(make_spec())
        other = make_spec(setting=make_setting(**changes), trials=1)
        with pytest.raises(ConflictError, match=f"'study' exists with other settings.*{said}"):
            database.create_study(other)
        with pytest.raises(ConflictError, match=said):
            database.update_study("study", spec=other)
        assert database.study("study").spec == make_spec()

    def test_a_study_is_not_renamed(self, database: Database) -> None:
        """A specification of another name is refused."""
        database.create_study(make_spec())
        with pytest.raises(ConflictError, match="'study' cannot be renamed to 'other'"):
            database.update_study("study", spec=make_spec("other"))

    def test_update_leaves_what_is_not_given(self, database: Database) -> None:
        """State, error and specification change one by one."""
        database.create_study(make_spec())
        database.update_study("study", state="failed", error="no GPU")
        database.update_study("study", spec=make_spec(trials=1))
        record = database.study("study")
        assert (record.state, record.error, record.spec.trials) == ("failed", "no GPU", 1)
        database.update_study("study", error="")
        assert database.study("study").error == ""

    def test_a_lease_is_one_process_s_at_a_time(self, database: Database) -> None:
        """Free, taken, asked to end, given back; the study need not exist."""
        assert database.lease("study") is None
        assert database.take_lease("study", OWNER)
        assert not database.take_lease("study", HEIR)
        assert database.take_lease("another", HEIR)
        found = database.lease("study")
        assert found is not None
        assert (found.owner, found.beats, found.is_cancelled) == (OWNER, 0, False)
        assert found.since.utcoffset() is not None
        assert database.ask_to_end("study", OWNER.token)
        beaten = database.beat("study", OWNER.token)
        assert beaten == replace(found, beats=1, is_cancelled=True)
        database.release_lease("study", HEIR.token)
        assert database.lease("study") == beaten
        database.release_lease("study", OWNER.token)
        assert database.lease("study") is None
        assert not database.ask_to_end("study", OWNER.token)

    def test_a_lease_is_taken_over_only_as_it_was_seen(self, database: Database) -> None:
        """Not once its owner has given a sign of life since."""
        database.create_study(make_spec())
        database.take_lease("study", OWNER)
        seen = database.lease("study")
        assert seen is not None
        now = database.beat("study", OWNER.token)
        assert not database.take_lease("study", HEIR, instead_of=seen)
        assert database.add_trial("study", make_result(), token=OWNER.token) == 0
        assert database.take_lease("study", HEIR, instead_of=now)
        assert database.beat("study", OWNER.token) is None
        with pytest.raises(ConflictError, match=r"is run by process 2 on b since .*: this run"):
            database.add_trial("study", make_result(), token=OWNER.token)
        assert database.add_trial("study", make_result(), token=HEIR.token) == 1
        database.release_lease("study", HEIR.token)
        with pytest.raises(ConflictError, match="was given up since: this run of it ends"):
            database.add_trial("study", make_result(), token=HEIR.token)

    def test_of_many_that_want_a_lease_one_gets_it(self, database: Database) -> None:
        """A free one as well as a dead process's."""
        owners = [replace(OWNER, token=f"{i}") for i in range(8)]
        with ThreadPoolExecutor(8) as executor:
            for _ in range(3):
                seen = database.lease("study")

                def take(owner: Owner, seen: LeaseRecord | None = seen) -> bool:
                    return database.take_lease("study", owner, instead_of=seen)

                assert sum(executor.map(take, owners)) == 1
                seen = database.lease("study")
                assert seen is not None
                owners = [replace(o, token=f"{o.token}-") for o in owners]

    @pytest.mark.parametrize(
        "use",
        [
            lambda d, n: d.study(n),
            lambda d, n: d.update_study(n, state="done"),
            lambda d, n: d.save_description(n, make_description()),
            lambda d, n: d.description(n),
            lambda d, n: d.add_trial(n, make_result()),
            lambda d, n: d.trials(n),
            lambda d, n: d.save_comparison(n, make_comparison()),
            lambda d, n: d.comparison(n),
            lambda d, n: d.save_recipe(n, make_recipe()),
            lambda d, n: d.recipes(n),
        ],
    )
    def test_an_unknown_study_lists_close_names(
        self, database: Database, use: Callable[[Database, str], object]
    ) -> None:
        """Every method says which names it might have been."""
        with pytest.raises(NotFoundError, match="'vit-1' does not exist: no study is stored"):
            use(database, "vit-1")
        database.create_study(make_spec("vit-2"))
        with pytest.raises(NotFoundError, match=r"'vit-1' does not exist: did you mean 'vit-2'\?"):
            use(database, "vit-1")
        with pytest.raises(NotFoundError, match="'bert' does not exist: stored are 'vit-2'"):
            use(database, "bert")

    @FEW
    @given(result=trial_results())
    def test_any_result_comes_back(self, database: Database, result: TrialResult) -> None:
        """Every float to the bit, every character, in every field."""
        database.create_study(make_spec())
        number = database.add_trial("study", result)
        stored = database.trials("study")[number]
        assert stored.number == number
        assert written(stored.result) == written(result)

    def test_results_are_numbered_without_gaps(self, database: Database) -> None:
        """Baselines and search trials of a study are counted together, each study alone."""
        for name in ("one", "two"):
            database.create_study(make_spec(name))
        assert database.add_trial("one", make_result("eager", role="baseline")) == 0
        assert database.add_trial("one", make_result()) == 1
        assert database.add_trial("two", make_result()) == 0
        assert database.add_trial("one", make_result(failure="wrong")) == 2
        assert [t.number for t in database.trials("one")] == [0, 1, 2]
        assert [t.number for t in database.trials("one", "search")] == [1, 2]
        assert [t.number for t in database.trials("one", "baseline")] == [0]

    def test_outlines_follow_a_number(self, database: Database) -> None:
        """In order, a few at a time, with what overviews need."""
        database.create_study(make_spec())
        assert database.count("study") == (0, -1)
        database.add_trial("study", make_result("eager", role="baseline", latency_ms=2.0))
        database.add_trial("study", make_result(failure="crash"))
        database.add_trial("study", make_result(latency_ms=float("inf")))
        assert database.count("study") == (3, 2)
        found = database.outlines("study")
        (eager, crash, unknown), chosen = zip(*found, strict=True)
        assert (eager.number, eager.role, eager.latency_ms) == (0, "baseline", 2.0)
        assert (eager.program, eager.ci95_ms) == ("eager", (0.5, 2.5))
        assert chosen[0] == {"program": "eager"}
        assert (crash.state, crash.failure_kind, crash.latency_ms) == ("failed", "crash", None)
        assert (unknown.state, unknown.latency_ms) == ("complete", None)
        assert database.outlines("study", after=0, limit=1) == [found[1]]
        assert [t.number for t in database.trials("study", numbers=(2, 0))] == [0, 2]

    @FEW
    @given(result=trial_results())
    def test_any_result_has_an_outline(self, database: Database, result: TrialResult) -> None:
        """Whatever text and numbers it holds."""
        if not database.studies():
            database.create_study(make_spec())
        number = database.add_trial("study", result)
        ((outline, assignment),) = database.outlines("study", after=number - 1)
        (stored,) = database.trials("study", numbers=(number,))
        assert assignment == stored.result.candidate.assignment
        assert outline.state == result.state

    def test_the_last_anatomy_of_a_recipe_counts(self, database: Database) -> None:
        """Whether or not its recipe is stored."""
        recipe = make_recipe()
        assert database.anatomy(recipe) is None
        database.save_anatomy(recipe, replace(make_anatomy(), costs=None))
        database.save_anatomy(recipe, make_anatomy())
        assert database.anatomy(recipe) == make_anatomy()
        assert database.anatomy(make_recipe("f" * 64)) is None

    def test_threads_lose_nothing(self, database: Database) -> None:
        """Several threads that add at once get distinct numbers."""
        database.create_study(make_spec())

        def add(i: int) -> int:
            return database.add_trial("study", replace(make_result(), process_id=i))

        with ThreadPoolExecutor(4) as threads:
            numbers = list(threads.map(add, range(40)))
        assert sorted(numbers) == list(range(40))
        stored = {t.number: t.result.process_id for t in database.trials("study")}
        assert stored == {number: i for i, number in enumerate(numbers)}

    def test_values_are_stored_by_value(self, database: Database) -> None:
        """Changing a mapping that went in, or one that came out, changes nothing stored."""
        database.create_study(make_spec())
        assignment = {"program": "eager"}
        candidate = Candidate(assignment=assignment, plan_key="c" * 64)
        database.add_trial("study", replace(make_result(), candidate=candidate))
        assignment["program"] = "changed"
        first = database.trials("study")[0].result.candidate.assignment
        assert first == {"program": "eager"}
        first["program"] = "changed"  # type: ignore[index]  # a dictionary behind the Mapping
        assert database.trials("study")[0].result.candidate.assignment == {"program": "eager"}

    def test_a_description_comes_back(self, database: Database) -> None:
        """None before the first, then the last."""
        database.create_study(make_spec())
        assert database.description("study") is None
        uncaptured = Program(
            front_end="none", hash="", loose_hash="", ops=(), cells=(), classes=(), reason="why"
        )
        other = replace(uncaptured, reason="another reason")
        for program in (make_program(), uncaptured, other, make_program()):
            description = make_description(program)
            database.save_description("study", description)
            assert database.description("study") == description

    def test_a_result_belongs_to_the_machine_of_its_time(self, database: Database) -> None:
        """A study that is resumed on another machine keeps apart what was measured where."""
        database.create_study(make_spec())
        database.add_trial("study", make_result())
        moved = replace(MACHINE, device="NVIDIA H100")
        for machine in (MACHINE, moved):
            database.save_description("study", make_description(fingerprint=machine))
            database.add_trial("study", make_result())
        found = {m.fingerprint.device: (m.trials, m.studies) for m in database.machines()}
        assert found == {"NVIDIA H200": (1, ("study",)), "NVIDIA H100": (1, ("study",))}
        keys = [t.environment_key for t in database.trials("study")]
        assert keys == ["", MACHINE.strict_key, moved.strict_key]

    def test_the_last_comparison_comes_back(self, database: Database) -> None:
        """With every block, and floats that JSON does not know."""
        database.create_study(make_spec())
        assert database.comparison("study") is None
        for latency_ms in (1.0, 2.0):
            database.save_comparison("study", make_comparison(latency_ms))
        assert written(database.comparison("study")) == written(make_comparison(2.0))

    def test_summaries_tell_the_best(self, database: Database) -> None:
        """Newest study first; only complete results count as best."""
        database.create_study(make_spec("empty", setting=make_setting(name="vit", device="cuda")))
        database.create_study(make_spec("full"))
        for name, latency_ms in (("eager", 3.0), ("thunder", 2.0)):
            database.add_trial("full", make_result(name, role="baseline", latency_ms=latency_ms))
        for latency_ms in (1.5, 1.25, float("nan")):
            database.add_trial("full", make_result(latency_ms=latency_ms))
        database.add_trial("full", make_result(latency_ms=0.5, state="failed"))
        database.add_trial("full", make_result(failure="crash"))
        full, empty = database.studies()
        assert (full.name, full.trials, full.best_ms, full.best_baseline_ms) == (
            "full",
            5,
            1.25,
            2,
        )
        assert (empty.name, empty.model, empty.device, empty.state) == (
            "empty",
            "vit",
            "cuda",
            "running",
        )
        assert (empty.trials, empty.best_ms, empty.best_baseline_ms) == (0, None, None)
        assert empty.created_at == database.study("empty").created_at

    def test_baselines_are_reused_by_another_study(self, database: Database) -> None:
        """The newest of each name that would come out the same."""
        self._measure_baselines(database)
        later = make_result("eager", role="baseline", latency_ms=4.0)
        database.create_study(make_spec("later"))
        database.save_description("later", make_description(make_program(reason="other words")))
        database.add_trial("later", later)
        database.add_trial("later", make_result("eager", role="baseline", failure="crash"))
        found = database.reusable_baselines(make_description(), make_setting(log_folder="here"))
        assert set(found) == {"eager", "thunder", "torch.compile:max-autotune"}
        assert found["eager"] == later
        assert found["thunder"].failure is not None

    @pytest.mark.parametrize(
        ("description", "setting"),
        [
            (make_description(make_program("f" * 64)), make_setting()),
            (make_description(fingerprint=replace(MACHINE, driver="571")), make_setting()),
            (
                make_description(
                    fingerprint=replace(
                        MACHINE, packages={**MACHINE.packages, "lightning-thunder": "0.2.7"}
                    )
                ),
                make_setting(),
            ),
            (make_description(), make_setting(batch_size=2)),
            (make_description(), make_setting(policies=("low",))),
            (make_description(), make_setting(metric=("m:f", 1.0))),
        ],
    )
    def test_baselines_of_another_question_are_not_reused(
        self, database: Database, description: Description, setting: Setting
    ) -> None:
        """Another program, machine, version, source, policy or metric is a miss."""
        self._measure_baselines(database)
        assert database.reusable_baselines(description, setting) == {}

    def test_a_timeout_is_not_reused_under_other_limits(self, database: Database) -> None:
        """Who raises the limit wants to know."""
        self._measure_baselines(database)
        longer = make_setting(limits=Limits(compile_s=5000.0))
        found = database.reusable_baselines(make_description(), longer)
        assert set(found) == {"eager", "thunder"}

    def test_baselines_of_an_uncaptured_program_are_not_reused(self, database: Database) -> None:
        """Without a hash nobody can tell whether the code is the same."""
        uncaptured = Program(
            front_end="none", hash="", loose_hash="", ops=(), cells=(), classes=()
        )
        description = make_description(uncaptured)
        database.create_study(make_spec())
        database.save_description("study", description)
        database.add_trial("study", make_result("eager", role="baseline"))
        assert database.reusable_baselines(description, make_setting()) == {}

    def test_recipes_come_back_newest_first(self, database: Database) -> None:
        """Saving one again makes it the newest and stores it once."""
        for name in ("one", "two"):
            database.create_study(make_spec(name))
        first, second, third = (make_recipe(latency_ms=float(i)) for i in range(3))
        database.save_recipe("one", first)
        database.save_recipe("two", second)
        database.save_recipe("one", third)
        assert database.recipes() == [third, second, first]
        assert database.recipes("one") == [third, first]
        database.save_recipe("one", first)
        assert database.recipes("one") == [first, third]

    def test_recipes_are_found_by_model_and_by_program(self, database: Database) -> None:
        """Everything given must hold; a recipe is found by any of its plans."""
        database.create_study(make_spec())
        one, both = make_recipe("1" * 64), make_recipe("1" * 64, "2" * 64)
        database.save_recipe("study", one, model_key="m" * 64)
        database.save_recipe("study", both)
        find = database.find_recipes
        assert find() == [both, one]
        assert find(program_hash="1" * 64) == [both, one]
        assert find(program_hash="2" * 64) == [both]
        assert find(program_loose_hash="b" * 64) == [both, one]
        assert find(model_key="m" * 64) == [one]
        assert find(model_key="m" * 64, program_hash="2" * 64) == []
        assert find(program_hash="2" * 64, program_loose_hash="1" * 64) == []

    @staticmethod
    def _measure_baselines(database: Database) -> None:
        database.create_study(make_spec())
        database.save_description("study", make_description())
        add = database.add_trial
        add("study", make_result("eager", role="baseline", latency_ms=3.0))
        add("study", make_result("thunder", role="baseline", failure="compile"))
        add("study", make_result("torch.compile", role="baseline", failure="worker-lost"))
        add("study", make_result("torch.compile:max-autotune", role="baseline", failure="timeout"))
        add("study", make_result("composed"))
