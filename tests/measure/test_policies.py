from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.errors import InputError, NotFoundError
from thunder_tune.measure.policies import PART, POLICIES, Part, policy
from thunder_tune.values.trial import Accuracy

ABOVE = 1 + 1e-9
BELOW = 1 - 1e-9


def accuracy(**changes):
    values = {"error_ratio": 1e6, "relative_error": 0.0, "cosine": 1.0, "top1_agreement": 1.0}
    return Accuracy(**{**values, **changes})


def accepts(name, part=None, **changes):
    return policy(name).refusal(accuracy(**changes), part) == ""


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("same", {"error_ratio": 2.0}),
        ("same", {"error_ratio": 2.0, "gradient_error_ratio": 2.0}),
        ("mixed", {"relative_error": 0.02}),
        ("low", {"relative_error": 0.125}),
        ("low", {"relative_error": 0.125, "cosine": 0.99}),
        ("low", {"relative_error": 0.125, "top1_agreement": 0.99}),
    ],
)
def test_limit_itself_is_allowed_and_beyond_is_not(name, limit):
    assert accepts(name, **limit)
    key, value = list(limit.items())[-1]
    beyond = value * (BELOW if key in ("cosine", "top1_agreement") else ABOVE)
    assert not accepts(name, **{**limit, key: beyond})


def test_mixed_does_not_ask_for_cosine_or_agreement():
    assert accepts("mixed", relative_error=0.01, cosine=0.5, top1_agreement=0.1)


def test_low_without_classes_asks_no_agreement():
    assert accepts("low", top1_agreement=None)


def test_any_takes_everything():
    assert accepts("any", error_ratio=math.inf, relative_error=math.inf, cosine=-1.0)


@pytest.mark.parametrize("name", ["same", "mixed", "low"])
@pytest.mark.parametrize("field", ["error_ratio", "relative_error"])
def test_nan_is_never_accepted(name, field):
    values = {"error_ratio": math.nan, "relative_error": math.nan}
    assert not accepts(name, **{**values, field: math.nan})


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("same", Part(error_ratio=2 * PART)),
        ("mixed", Part(error_ratio=1e6, relative_error=0.02 * PART)),
        ("low", Part(error_ratio=1e6, relative_error=0.125 * PART)),
    ],
)
def test_part_may_err_four_times_as_much(name, part):
    values = {"error_ratio": 2.0 if name == "same" else 1e6, "relative_error": 0.0}
    assert accepts(name, part, **values)
    worse = Part(error_ratio=part.error_ratio * ABOVE, relative_error=part.relative_error * ABOVE)
    assert not accepts(name, worse, **values)


errors = st.floats(0, 10)


@given(errors, errors, st.none() | errors, st.floats(-1, 1), st.none() | st.floats(0, 1.1))
def test_laxer_policies_accept_what_stricter_ones_do(ratio, error, gradient, cosine, top1):
    given_accuracy = Accuracy(
        error_ratio=ratio,
        relative_error=error,
        cosine=cosine,
        top1_agreement=top1,
        gradient_error_ratio=gradient,
    )
    same, mixed, low, anything = (
        POLICIES[n].refusal(given_accuracy) == "" for n in ("same", "mixed", "low", "any")
    )
    assert mixed >= same
    assert low >= mixed
    assert anything


@pytest.mark.parametrize(
    ("name", "model", "allowed", "refused"),
    [
        ("same", "float32", "float64 float32", "tf32 bfloat16 float16 float8_e4m3fn int8"),
        ("same", "bfloat16", "float32 tf32 bfloat16", "float16 float8_e4m3fn mxfp8 int8 nf4"),
        ("same", "float16", "float32 tf32 float16", "bfloat16 float8_e5m2"),
        ("mixed", "float32", "float32 tf32 bfloat16 float16", "float8_e4m3fn int8 nvfp4"),
        ("mixed", "bfloat16", "float32 bfloat16 float16", "int4 mxfp6"),
        ("low", "bfloat16", "float16 float8_e4m3fn mxfp8 mxfp6 nvfp4 int8 int4 nf4 fp6", ""),
        ("any", "float32", "nvfp4 tf32", ""),
    ],
)
def test_compute_types(name, model, allowed, refused):
    reasons = {d: policy(name).allows_dtype(model, d) for d in (allowed + " " + refused).split()}
    assert [d for d, reason in reasons.items() if not reason] == allowed.split()
    assert all(name in reason for reason in reasons.values() if reason)


def test_unknown_type_is_refused():
    with pytest.raises(InputError, match="unknown compute type 'float99': use one of float64"):
        policy("same").allows_dtype("float32", "float99")


def test_unknown_policy_is_refused():
    with pytest.raises(NotFoundError, match="unknown policy 'exact': use one of same, mixed, low"):
        policy("exact")
