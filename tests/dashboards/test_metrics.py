from __future__ import annotations

import re

from thunder_tune.testing.sample_values import make_result, make_spec

LINE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\} ([0-9.e+-]+)')


def scraped(client):
    """Return what Prometheus would read: each sample's value by name and labels."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [line for line in answer.text.splitlines() if not line.startswith("#")]
    matches = [LINE.fullmatch(line) for line in samples]
    assert all(matches), answer.text
    return {(m[1].removeprefix("thunder_tune_"), m[2]): float(m[3]) for m in matches}


def test_an_empty_database_has_no_studies(client):
    assert scraped(client) == {
        ("studies", f'state="{state}"'): 0.0
        for state in ("running", "interrupted", "done", "failed")
    }


def test_trials_are_counted_by_outcome(client, database):
    name = 'a "b" c'
    database.create_study(make_spec(name, trials=7))
    database.add_trial(name, make_result("eager", role="baseline"))
    for failure in (None, None, "wrong", "crash", "crash"):
        database.add_trial(name, make_result(failure=failure))
    found = scraped(client)
    study = r'study="a \"b\" c"'
    assert found["studies", 'state="running"'] == 1
    assert found["trials", f'{study},role="search",state="complete",kind=""'] == 2
    assert found["trials", f'{study},role="search",state="failed",kind="crash"'] == 2
    assert found["trials", f'{study},role="baseline",state="complete",kind=""'] == 1
    assert found["trials_left", study] == 2


def test_a_finished_study_has_nothing_left(client, filled):
    found = scraped(client)
    assert ("trials_left", 'study="vit"') not in found
    assert 0 < found["best_ms", 'study="vit"'] < found["best_baseline_ms", 'study="vit"']
