from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.cli.durations import seconds_of, text_of
from thunder_tune.errors import InputError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("7m", 420), ("1h30m", 5400), ("1h", 3600), ("2m05", 125),
     ("0.5", 0.5), (" 7M ", 420), ("1h0m1s", 3601)],
)  # fmt: skip
def test_durations_as_people_write_them(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "0", "0m", "-5", "7 m", "1m2h", "s", "1.5h", "inf", "nan", "7mm"]
)
def test_no_durations(text):
    with pytest.raises(InputError, match=r"duration .*: write 90, 90s, 7m or 1h30m, above zero"):
        seconds_of(text)


@given(hours=st.integers(0, 99), minutes=st.integers(0, 99), seconds=st.integers(1, 99))
def test_parts_add_up(hours, minutes, seconds):
    assert seconds_of(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (45.4, "45 s"),
        (425, "7 min 05 s"),
        (5400, "1 h 30 min"),
        (3599.7, "1 h 00 min"),
    ],
)
def test_durations_as_people_read_them(seconds, text):
    assert text_of(seconds) == text
