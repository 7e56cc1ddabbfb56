"""Gradients are judged like outputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thunder_tune.measure.accuracy import Judge, Rejected
from thunder_tune.measure.steps import (
    Outputs,
    trainable,
    training_step,
)
from thunder_tune.testing.judged import (
    CLASSES,
    WIDTH,
    make_inputs,
)


def wrong_gradient(step, index, change):
    def wrapped(inputs):
        outputs = step(inputs)
        gradients = list(outputs.gradients)
        gradients[index] = change(gradients[index])
        return Outputs(outputs.tensors, tuple(gradients))

    return wrapped


@pytest.fixture(scope="module")
def own_training(model):
    return training_step(model, tuple(trainable(model).values()))


def test_training_judges_gradients(training_judge, own_training):
    accuracy = training_judge.judge(own_training)
    assert accuracy.gradient_error_ratio == 1.0
    assert accuracy.error_ratio == 1.0


@pytest.mark.parametrize("index", range(6))
def test_wrong_gradient_in_one_of_many_is_wrong(training_judge, own_training, index):
    with pytest.raises(Rejected, match="gradient") as caught:
        training_judge.judge(wrong_gradient(own_training, index, lambda g: g * 1.001))
    assert caught.value.kind == "wrong"
    assert caught.value.accuracy.error_ratio == 1.0
    assert caught.value.accuracy.gradient_error_ratio > 2.0


def test_results_are_stored_by_name_the_worst_gradients_first(training_judge, own_training):
    with pytest.raises(Rejected, match=r"\(gradient of 2\.bias\)") as caught:
        training_judge.judge(wrong_gradient(own_training, 3, lambda g: g * 1.001))
    output, worst, *others = caught.value.accuracy.tensors
    assert (output.name, output.error_ratio) == ("output", 1.0)
    assert worst.name == "gradient of 2.bias"
    assert worst.error_ratio == caught.value.accuracy.gradient_error_ratio
    assert worst.relative_error == pytest.approx(1e-3, rel=1e-2)
    assert worst.part_error == pytest.approx(1e-3, rel=1e-2)
    assert {t.error_ratio for t in others} == {1.0}
    assert len(others) == 5


def test_a_refusal_names_every_tensor_it_is_for(training_judge, own_training):
    step = own_training
    for index in range(5):
        step = wrong_gradient(step, index, lambda g, by=1.001 + index / 100: g * by)
    with pytest.raises(Rejected, match=r"\(gradient of 4\.weight, .*weight and 2 more\)"):
        training_judge.judge(step)


@pytest.mark.parametrize("index", range(5))  # that of the last bias is one for all inputs
def test_gradient_of_another_input_in_one_of_many_is_wrong(training_judge, own_training, index):
    before = []

    def stale(gradient):
        before.append(gradient.clone())
        return before[max(0, len(before) - 2)]

    with pytest.raises(Rejected, match="gradient") as caught:
        training_judge.judge(wrong_gradient(own_training, index, stale))
    assert caught.value.kind in ("wrong", "unstable")


def test_gradients_that_add_up_over_calls_are_rejected(training_judge, own_training):
    total = []

    def adding(gradient):
        total.append(gradient.clone())
        return sum(total)

    with pytest.raises(Rejected, match="gradient"):
        training_judge.judge(wrong_gradient(own_training, 2, adding))


def test_missing_gradient_is_wrong_shape(training_judge, own_training):
    with pytest.raises(Rejected, match=r"gradient of 0\.bias is missing") as caught:
        training_judge.judge(wrong_gradient(own_training, 1, lambda g: None))
    assert caught.value.kind == "wrong-shape"


class Attention(nn.Module):
    """Has a bias of keys, whose gradient is zero but for rounding."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(
            self.query(x)[None], self.key(x)[None], self.value(x)[None]
        )


def attention_by_hand(model):
    def call(x):
        scores = model.query(x) @ model.key(x).T / WIDTH**0.5
        return (torch.softmax(scores, -1) @ model.value(x))[None]

    return call


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_lost_in_rounding_is_held_to_typical_gradients(dtype):
    torch.manual_seed(0)
    model = Attention().to(dtype)
    judge = Judge(model, lambda s: make_inputs(s, dtype), device="cpu", training=True)
    lost = [s.name for s in judge._reference.slots if not s.is_resolved]
    assert lost == ["gradient of key.bias"]
    parameters = trainable(model)
    step = training_step(attention_by_hand(model), tuple(parameters.values()))
    assert judge.judge(step).policies["same"]
    index = list(parameters).index("key.bias")
    wrong = wrong_gradient(step, index, lambda g: g + parameters["value.bias"].detach())
    with pytest.raises(Rejected, match=r"key\.bias"):
        judge.judge(wrong)


def test_unused_parameter_may_have_no_gradient():
    class Unused(nn.Linear):
        def __init__(self):
            super().__init__(WIDTH, CLASSES)
            self.spare = nn.Parameter(torch.ones(3))

    model = Unused()
    judge = Judge(model, make_inputs, device="cpu", training=True)
    own = training_step(model, tuple(trainable(model).values()))
    assert judge.judge(own).gradient_error_ratio == 1.0
    index = list(trainable(model)).index("spare")
    judge.judge(wrong_gradient(own, index, lambda g: torch.zeros(3)))
    with pytest.raises(Rejected, match="gradient of spare exists"):
        judge.judge(wrong_gradient(own, index, lambda g: torch.ones(3)))
