from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from benchmarks.replay.__main__ import main
from benchmarks.replay.strategies import RecordedLedger, best_after, search, shuffled
from thunder_tune.errors import ConflictError, InputError, NotFoundError
from thunder_tune.study.recording import record
from thunder_tune.testing.replay_tables import synthetic_table
from thunder_tune.values.replay import read_table, write_table

SEEDS = range(6)
TRIALS = 12


@pytest.fixture(scope="module")
def table():
    return synthetic_table(classes=12, plans=100)


def hits(table, strategy):
    ends = [best_after(list(islice(strategy(table, seed), TRIALS)), TRIALS) for seed in SEEDS]
    return sum(end <= 1.02 * table.best_ms for end in ends)


def test_a_table_survives_its_file(table, tmp_path):
    path = tmp_path / "table.json"
    write_table(table, path)
    assert read_table(path) == table
    path.write_text('{"version": 99}')
    with pytest.raises(InputError, match="version 99"):
        read_table(path)
    path.write_text('{"version": 1, "packed": "xx"}')
    with pytest.raises(InputError, match="not a replay table"):
        read_table(path)


def test_the_search_lives_on_what_classes_take_alone(table):
    """With values dealt at random it finds the best no sooner than chance would."""
    assert hits(table, search) == len(SEEDS)
    assert hits(table, shuffled) <= len(SEEDS) // 2


def test_every_recorded_plan_is_tried_once(table):
    few = replace(table, plans=table.plans[-20:])
    assert len(list(search(few, 0))) == len(RecordedLedger(few).plans) == 20


def test_the_command_prints_one_object_last(table, tmp_path, capsys):
    import json

    path = tmp_path / "small.json"
    write_table(replace(table, plans=table.plans[-12:]), path)
    assert main([str(path), "--seeds", "1", "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    rates = last["tables"]["small"]["hit_rate_40"]
    assert rates == {"search": 1.0, "tpe": 1.0, "random": 1.0}
    assert last["tables"]["small"]["counts"] is False


class TestRecord:
    def test_studies_of_one_program_become_one_table(
        self, study, spec, dimensions, costs, database
    ):
        space = dimensions(glue=4, anchors=1)
        study(spec("one", trials=8, screening=True), space, costs())
        study(spec("two", trials=12, sampler="random", seed=3), space, costs())
        table = record(database, ["one", "two"])
        assert len({plan.choices for plan in table.plans}) == len(table.plans) >= 12
        assert any(len(plan.latencies_ms) == 2 for plan in table.plans)
        assert any(plan.is_random for plan in table.plans)
        assert {m.class_id for m in table.measurements} == {
            d.name.partition(":")[2] for d in space[1:]
        }
        assert RecordedLedger(table).plans

    def test_studies_that_do_not_belong_together_are_refused(
        self, study, spec, dimensions, costs, database
    ):
        study(spec("one", trials=1), dimensions(glue=1), costs())
        description = database.description("one")
        database.create_study(spec("other"))
        with pytest.raises(InputError, match="'other' has no captured program"):
            record(database, ["one", "other"])
        changed = replace(description, program=replace(description.program, hash="0" * 64))
        database.save_description("other", changed)
        with pytest.raises(ConflictError, match="'one' is of another program"):
            record(database, ["one", "other"])
        with pytest.raises(NotFoundError, match="'missing' does not exist"):
            record(database, ["missing"])
