from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thunder_tune.errors import ConflictError, NotFoundError, ThunderTuneError
from thunder_tune.storage import Database
from thunder_tune.testing.databases import OWNER, written
from thunder_tune.testing.sample_values import (
    make_anatomy,
    make_comparison,
    make_description,
    make_recipe,
    make_result,
    make_spec,
)


def fill(database, name):
    database.create_study(make_spec(name))
    database.save_description(name, make_description())
    for failure in (None, "wrong", "crash"):
        database.add_trial(name, make_result(failure=failure))
    database.save_comparison(name, make_comparison())
    database.save_recipe(name, make_recipe(), model_key="m")


def seen(database, name):
    return [
        database.study(name).spec,
        database.study(name).created_at,
        database.description(name),
        [(t.number, written(t.result), t.environment_key) for t in database.trials(name)],
        written(database.comparison(name)),
        database.recipes(name),
    ]


@pytest.fixture
def source(tmp_path):
    database = Database.open(str(tmp_path / "source.db"))
    for name in ("one", "two"):
        fill(database, name)
    database.update_study("two", state="done")
    yield database
    database.close()


@pytest.fixture
def target(any_url):
    database = Database.open(any_url)
    yield database
    database.close()


def test_studies_arrive_in_a_database_of_any_kind_with_all_that_they_hold(source, target):
    source.take_lease("one", OWNER)
    (recipe,) = source.recipes("one")
    source.save_anatomy(recipe, make_anatomy())
    lines = source.export_lines(["one", "two"])
    assert target.import_lines(lines) == ["one", "two"]
    for name in ("one", "two"):
        assert seen(target, name) == seen(source, name)
    assert target.find_recipes(model_key="m") == 2 * [make_recipe()]
    assert target.anatomy(recipe) == make_anatomy()
    assert target.lease("one") is None
    assert [target.study(name).state for name in ("one", "two")] == ["interrupted", "done"]
    assert target.add_trial("one", make_result()) == 3
    assert target.export_lines(["two"]) == source.export_lines(["two"])


def test_a_study_that_is_there_already_is_refused_and_nothing_is_taken_in(source, target):
    fill(target, "two")
    with pytest.raises(ConflictError, match="study 'two' is stored here already: nothing was"):
        target.import_lines(source.export_lines(["one", "two"]))
    assert [s.name for s in target.studies()] == ["two"]


def test_an_unknown_study_is_told(source):
    with pytest.raises(NotFoundError, match="'onne' does not exist: did you mean 'one'"):
        source.export_lines(["two", "onne"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [], "line 1: not a file of studies"),
        (lambda lines: ["{"], "line 1: not JSON"),
        (lambda lines: lines[1:], "line 1: not a file of studies"),
        (
            lambda lines: ['{"format":"thunder-tune studies","version":2}'],
            "line 1: version 2, kno",
        ),
        (lambda lines: [*lines, "[" * 100_000], "line 10: not JSON"),
        (lambda lines: [*lines, '["lease", {}]'], "line 10: must be a pair of a kind"),
        (lambda lines: [*lines, '["trial", {}]'], "line 10: damaged .*KeyError"),
        (lambda lines: [lines[0], *lines[4:]], "line 2: a trial before its study"),
        (lambda lines: [*lines[:4], *lines[4:7], lines[4]], "UNIQUE constraint failed"),
        (lambda lines: [line.replace("float32", "float31") for line in lines], "is damaged"),
    ],
)
def test_a_damaged_file_is_told_in_one_line_and_nothing_is_taken_in(
    source, tmp_path, change, said
):
    target = Database.open(str(tmp_path / "target.db"))
    with pytest.raises(ThunderTuneError, match=said) as error:
        target.import_lines(change(source.export_lines(["one"])))
    assert "\n" not in str(error.value)
    assert target.studies() == []
    target.close()


@pytest.fixture
def in_memory():
    database = Database.open("sqlite://")
    yield database
    database.close()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_change_of_a_row_is_taken_in_or_told(source, in_memory, data):
    lines = source.export_lines(["one"])
    at = data.draw(st.integers(1, len(lines) - 1))
    kind, row = json.loads(lines[at])
    column = data.draw(st.sampled_from(sorted(row)))
    anything = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    row[column] = data.draw(anything | st.lists(anything, max_size=2))
    lines[at] = json.dumps([kind, row])
    with suppress(ThunderTuneError):  # anything else is a defect
        in_memory.import_lines(lines)
    for study in in_memory.studies():
        assert len(seen(in_memory, study.name)[3]) == 3
    in_memory.collect(before=datetime.max.replace(tzinfo=timezone.utc), with_recipes=True)
    assert in_memory.studies() == []


def test_what_nothing_refers_to_is_removed_and_the_rest_stays(source):
    before = seen(source, "one")
    assert source.collect().studies == ()
    source.save_comparison("one", make_comparison())
    found = source.collect(is_rehearsal=True)
    assert (found.comparisons, found.programs, found.machines) == (1, 0, 0)
    assert source.collect() == found
    assert source.collect().comparisons == 0
    assert seen(source, "one") == before


def test_old_studies_are_removed_unless_they_are_run_or_found_something(source):
    source.create_study(make_spec("nothing"))
    source.create_study(make_spec("running"))
    source.take_lease("running", OWNER)
    created = max(s.created_at for s in source.studies())
    assert source.collect(before=source.study("one").created_at).studies == ()
    later = created.replace(year=created.year + 1)
    assert source.collect(before=later).studies == ("nothing",)
    found = source.collect(before=later, with_recipes=True)
    assert (found.studies, found.programs, found.machines) == (("one", "two"), 1, 1)
    assert [s.name for s in source.studies()] == ["running"]
    assert source.recipes() == []
