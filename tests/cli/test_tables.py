from __future__ import annotations

import pytest

from thunder_tune.cli.tables import milliseconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0100612, "0.01006"),
        (1.0, "1.000"),
        (1475.2, "1475"),
        (9999.6, "10000"),
        (123456.7, "123457"),
    ],
)
def test_latencies_have_four_digits_and_no_exponent(value, text):
    assert milliseconds(value) == text
