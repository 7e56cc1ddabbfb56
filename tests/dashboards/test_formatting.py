from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.dashboards import formatting

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("call", "value", "written"),
    [
        (formatting.milliseconds, 9.2971, "9.297 ms"),
        (formatting.milliseconds, 0.0123, "12.30 µs"),
        (formatting.milliseconds, 12345.6, "12.35 s"),
        (formatting.milliseconds, None, "–"),
        (formatting.milliseconds, NAN, "NaN"),
        (formatting.seconds, 0.0034, "3.4 ms"),
        (formatting.seconds, 3.456, "3.46 s"),
        (formatting.seconds, 0.0, "0 s"),
        (formatting.ratio, 1.0, "1.00"),
        (formatting.ratio, 0.0, "0.00"),
        (formatting.ratio, 81.64, "81.6"),
        (formatting.ratio, 1e-7, "1.00e-07"),
        (formatting.seconds, 59.96, "60.0 s"),
        (formatting.seconds, 245, "4 min 05 s"),
        (formatting.seconds, 7380, "2 h 03 min"),
        (formatting.seconds, INF, "∞"),
        (formatting.memory, 453 * 2**20, "453 MiB"),
        (formatting.memory, 3 * 2**29, "1.50 GiB"),
        (formatting.memory, None, "–"),
        (formatting.percent, 1.0, "100 %"),
        (formatting.percent, 0.012, "1.2 %"),
        (formatting.speedup, 1.2081, "1.208×"),
        (formatting.speedup, -INF, "−∞"),
        (formatting.interval, (9.1, 9.5), "9.100 – 9.500 ms"),
        (formatting.interval, (9.1, INF), "9.100 – ∞ ms"),
        (formatting.interval, (0.91, 0.95), "910.0 – 950.0 µs"),
        (formatting.interval, (900.0, 1100.0), "0.9000 – 1.100 s"),
        (formatting.interval, None, "–"),
        (formatting.moment, 0.0, "1970-01-01 00:00 UTC"),
        (formatting.moment, 1e300, "–"),
        (formatting.moment, NAN, "–"),
    ],
)
def test_numbers_are_written_as_people_write_them(call, value, written):
    assert call(value) == written


@given(st.floats())
def test_any_number_can_be_written(value: float):
    for call in (
        formatting.milliseconds,
        formatting.seconds,
        formatting.ratio,
        formatting.percent,
        formatting.speedup,
        formatting.moment,
        formatting.significant,
    ):
        assert call(value)
    assert formatting.interval((value, value))
