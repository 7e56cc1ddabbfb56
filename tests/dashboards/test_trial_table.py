from __future__ import annotations

import pytest

from thunder_tune.dashboards.trial_table import ABSENT, KEPT, Query, Tables, TrialTable, select
from thunder_tune.errors import NotFoundError
from thunder_tune.storage import Database
from thunder_tune.testing.dashboard_data import results
from thunder_tune.testing.sample_values import make_result, make_spec


def test_choices_are_kept_by_column(filled: Database):
    table = Tables(filled).of("vit")
    stored = {t.number: t.result.candidate.assignment for t in filled.trials("vit")}
    for i, row in enumerate(table.rows):
        found = {
            name: table.choices[name][codes[i]]
            for name, codes in table.codes.items()
            if codes[i] != ABSENT
        }
        assert found == stored[row.number]
    assert {len(codes) for codes in table.codes.values()} == {len(table.rows)}


def test_a_table_grows_with_its_study(database: Database):
    database.create_study(make_spec())
    tables = Tables(database)
    assert tables.of("study").rows == []
    for i, result in enumerate(results(6)):
        database.add_trial("study", result)
        assert [r.number for r in tables.of("study").rows] == list(range(i + 1))


def test_few_tables_are_kept(database: Database):
    tables = Tables(database)
    for i in range(KEPT + 2):
        database.create_study(make_spec(f"s{i}"))
        database.add_trial(f"s{i}", make_result())
        tables.of(f"s{i}")
    assert list(tables._kept) == [f"s{i}" for i in range(2, KEPT + 2)]
    assert len(tables.of("s0").rows) == 1


def test_an_unknown_study_is_named(database: Database):
    with pytest.raises(NotFoundError, match="study 'nope' does not exist"):
        Tables(database).of("nope")


def test_pages_do_not_overlap(filled: Database):
    table = Tables(filled).of("vit")
    pages = [select(table, Query(sort="latency", page=p, size=4)) for p in range(1, 9)]
    numbers = [row.number for rows, _total in pages for row in rows]
    assert sorted(numbers) == list(range(27))
    assert {total for _rows, total in pages} == {27}


def test_nothing_is_selected_of_nothing():
    assert select(TrialTable(), Query()) == ([], 0)
