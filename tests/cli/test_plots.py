from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.cli import plots
from thunder_tune.cli.exits import run
from thunder_tune.dashboards.trial_table import Tables, TrialTable
from thunder_tune.storage import Database
from thunder_tune.testing.dashboard_data import fill, results
from thunder_tune.testing.sample_values import make_spec


def filled(own_folder) -> Database:
    database = Database.open(str(own_folder / "record.db"))
    fill(database)
    return database


def test_the_fastest_has_the_shortest_bar(own_folder):
    database = filled(own_folder)
    found = plots.bars(Tables(database).of("vit"))
    database.close()
    lengths = [line.count("=") for line in found]
    assert lengths == sorted(lengths)
    assert lengths[-1] == plots.BAR
    assert len(found) == plots.TOP + 3
    assert {"eager", "torch.compile", "thunder"} <= {line.split()[0] for line in found}


def test_what_is_not_beaten_is_marked(own_folder):
    database = filled(own_folder)
    found = plots.trade_off(Tables(database).of("vit"))
    database.close()
    grid = "\n".join(found[1:-2])
    assert grid.count("@") >= 1
    assert "o" in grid
    best = [(line.index("@"), i) for i, line in enumerate(found[1:-2]) if "@" in line]
    assert [place for place, _line in best] == sorted(place for place, _line in best)
    assert len(found) == plots.HEIGHT + 3


def test_nothing_is_plotted_of_nothing():
    assert plots.bars(TrialTable()) == []
    assert plots.trade_off(TrialTable()) == []


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_every_value_has_a_cell(values: list[float]):
    assert all(0 <= place < 9 for place in plots._places(values, 9))


def test_show_plots_the_study(own_folder, capsys):
    filled(own_folder).close()
    assert run(["show", "vit"]) == 0
    out = capsys.readouterr().out
    assert "====" in out
    assert "error against latency" in out


def test_a_study_without_results_is_shown(own_folder, capsys):
    database = Database.open(str(own_folder / "record.db"))
    database.create_study(make_spec("empty"))
    database.create_study(make_spec("two"))
    for result in results(0):
        database.add_trial("two", result)
    database.close()
    assert run(["show", "empty"]) == 0
    assert "====" not in capsys.readouterr().out
    assert run(["show", "two"]) == 0
    assert "====" in capsys.readouterr().out
