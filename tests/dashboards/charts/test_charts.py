from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_tune.dashboards import insight
from thunder_tune.dashboards.charts import bars, drawing, program_map, repeats, trials
from thunder_tune.dashboards.charts.costs import costs
from thunder_tune.dashboards.trial_table import Tables
from thunder_tune.storage import Database
from thunder_tune.testing.sample_values import make_anatomy, make_program
from thunder_tune.values.plan import resolve

EVIL = "</svg><script>alert(1)</script>&\"'"
NUMERIC = {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height"}
finite = st.floats(-1e9, 1e9)


def same(words: str) -> str:
    return words


def drawn(chart) -> ET.Element:
    """Parse a chart: it is sound XML, has a name, no style or script, and no odd number."""
    assert chart is not None
    root = ET.fromstring(str(chart))
    assert root.get("aria-label")
    for element in root.iter():
        assert "style" not in element.attrib
        assert not element.tag.endswith("script")
        numbers = [v for k, v in element.attrib.items() if k in NUMERIC]
        assert all(math.isfinite(float(v)) for v in numbers)
    return root


def links(root: ET.Element) -> list[str]:
    return [e.get("href", "") for e in root.iter() if e.tag.endswith("}a")]


def test_charts_of_trials_link_to_them(filled: Database):
    table = Tables(filled).of("vit")
    link_to = "/x/{}".format
    history = drawn(trials.history(table, link_to, same))
    front = insight.front(insight.measured(table))
    assert len(links(history)) == 21
    assert "/x/3" in links(drawn(trials.trade_off(table, front, link_to, same)))
    effects = insight.effects(table)
    assert len(links(drawn(trials.parallel(table, effects, link_to, same)))) == 21


def test_charts_of_nothing_are_none(filled: Database):
    table = Tables(filled).of("bert")
    assert trials.history(table, str, same) is None
    assert trials.trade_off(table, [], str, same) is None
    assert trials.parallel(table, [], str, same) is None
    assert bars.intervals([], same) is None
    assert bars.shares([], "title") is None
    assert bars.phases({"load": 0.0}, same) is None
    assert bars.phases({"load": math.inf}, same) is None
    assert bars.phases({"load": math.nan}, same) is None
    assert repeats.distribution((1.0,), 1.0, (1.0, 1.0), same) is None


def test_any_text_is_escaped():
    bar = bars.Bar(EVIL, 1.0, (0.5, 2.0), True, f"/{EVIL}")
    assert links(drawn(bars.intervals([bar], same))) == [f"/{EVIL}"]
    drawn(bars.shares([(EVIL, 0.5)], EVIL))
    drawn(bars.phases({EVIL: 1.0}, same))


def test_what_is_not_finite_is_left_out():
    nan, inf = math.nan, math.inf
    drawn(bars.intervals([bars.Bar("a", 1.0, (nan, inf), False)], same))
    drawn(repeats.distribution((1.0, nan, 2.0, inf), nan, (nan, inf), same))
    drawn(repeats.in_order((1.0, nan, 2.0, inf), same))


def test_one_wild_interval_does_not_hide_the_others():
    wild = bars.Bar("c", 10.0, (0.02, 6000.0), False)
    near = [bars.Bar(n, ms, (ms, ms), False) for n, ms in (("a", 1.0), ("b", 1.1))]
    root = drawn(bars.intervals([*near, wild], same))
    first, second, _third = (float(e.get("cx", 0)) for e in root.iter() if "circle" in e.tag)
    assert second - first > 1


@settings(deadline=None)
@given(st.lists(st.floats(), min_size=2, max_size=60))
def test_any_repeats_can_be_drawn(samples: list[float]):
    repeats.distribution(samples, samples[0], (samples[0], samples[1]), same)
    repeats.in_order(samples, same)


@given(st.lists(finite, min_size=1), st.booleans())
def test_a_scale_keeps_order_and_bounds(values: list[float], log: bool):
    scale = drawing.scale(values, 0.0, 100.0, log=log)
    places = [scale(v) for v in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= p <= 100 for p in places)
    assert len(scale.ticks()) <= 24


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0])
def test_a_scale_of_odd_values_still_works(value: float):
    assert drawing.scale([value], 0.0, 1.0, log=True).ticks()


def test_the_program_is_drawn_op_by_op():
    program = make_program()
    plan = resolve(program, {"program": "composed", "executor:linear-0": "cudnn"})
    root = drawn(program_map.program_map(program, plan, same))
    titles = [e.text for e in root.iter() if e.tag.endswith("title")]
    assert titles == ["0 torch.nn.functional.linear · cudnn · linear-0"]
    whole = resolve(program, {"program": "eager"})
    assert program_map.program_map(program, whole, same) is None


def test_costs_without_work_are_drawn_all_the_same():
    anatomy = make_anatomy()
    assert anatomy.costs is not None
    root = drawn(costs(anatomy, {"torch": 0, "inductor": 1}, same))
    pieces = [e for e in root.iter() if e.get("class", "").startswith("piece")]
    assert [e.get("class") for e in pieces[:2]] == ["piece tone0", "piece tone1"]
    nothing = replace(anatomy.costs, work_ms=0.0, latency_ms=0.0, kernels=())
    drawn(costs(replace(anatomy, costs=nothing), {}, same))
    assert costs(replace(anatomy, costs=nothing, statements=(), baselines={}), {}, same) is None
    assert costs(replace(anatomy, costs=None), {}, same) is None
