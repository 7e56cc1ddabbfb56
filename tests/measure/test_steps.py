from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from thunder_tune.errors import ModelError
from thunder_tune.measure.steps import (
    Arguments,
    forward_step,
    named_tensors,
    trainable,
    training_step,
)

INPUTS = Arguments((torch.arange(6.0).reshape(2, 3),))


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    note: str = "text"


def test_tensors_are_found_in_every_container_in_order():
    a, b, c, d = (torch.tensor(float(i)) for i in range(4))
    found = list(named_tensors({"x": Result(a, (b,)), "y": [c, None, 3], "z": d}))
    assert [name for name, _ in found] == [
        "output['x'].logits",
        "output['x'].hidden[0]",
        "output['y'][0]",
        "output['z']",
    ]
    assert [t.item() for _, t in found] == [0.0, 1.0, 2.0, 3.0]


def test_transformers_outputs_are_mappings():
    result = BaseModelOutputWithPooling(
        last_hidden_state=torch.ones(1), pooler_output=torch.zeros(1)
    )
    names = [name for name, _ in named_tensors(result)]
    assert names == ["output['last_hidden_state']", "output['pooler_output']"]


def test_forward_passes_arguments_and_computes_no_gradient():
    weight = nn.Parameter(torch.ones(3))
    seen = {}

    def call(x, *, scale):
        seen["grad"] = torch.is_grad_enabled()
        return (x * weight * scale, "note")

    outputs = forward_step(call)(Arguments(INPUTS.args, {"scale": 2.0}))
    assert seen == {"grad": False}
    assert torch.equal(outputs.tensors[0], INPUTS.args[0] * 2)
    assert outputs.gradients == ()


@pytest.mark.parametrize("make", [forward_step, lambda call: training_step(call, ())])
def test_result_without_tensor_is_one_clear_line(make):
    with pytest.raises(
        ModelError, match=r"^the model returned dict without any tensor in it: .*$"
    ):
        make(lambda x: {"text": ["a", None]})(INPUTS)


def test_training_gives_gradients_of_a_fixed_cotangent():
    model = nn.Linear(3, 4)
    step = training_step(model, tuple(trainable(model).values()))
    first, second = step(INPUTS), step(INPUTS)
    assert not first.tensors[0].requires_grad
    for a, b in zip(first.gradients, second.gradients, strict=True):
        assert torch.equal(a, b)
        assert a is not b
    # The bias's gradient is the cotangent summed over the batch, so it shows its grid.
    assert torch.equal(first.gradients[1] * 8, (first.gradients[1] * 8).round())
    assert 0 < first.gradients[1].abs().max() <= 4
    assert all(p.grad is None for p in model.parameters())


def test_cotangents_are_the_same_numbers_in_every_precision():
    model = nn.Linear(3, 64)
    wide = nn.Linear(3, 64).double()
    half = nn.Linear(3, 64).bfloat16()
    gradients = []
    for m, dtype in ((model, torch.float32), (wide, torch.float64), (half, torch.bfloat16)):
        step = training_step(m, tuple(m.parameters()))
        gradients.append(step(Arguments((INPUTS.args[0].to(dtype)[:1],))).gradients[1].double())
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])


def test_default_dtype_does_not_change_cotangents():
    model = nn.Linear(3, 64)
    before = training_step(model, tuple(model.parameters()))(INPUTS).gradients[1]
    torch.set_default_dtype(torch.float64)
    try:
        after = training_step(model, tuple(model.parameters()))(INPUTS).gradients[1]
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(before, after)


def test_another_seed_gives_other_cotangents():
    model = nn.Linear(3, 64)
    one, other = (
        training_step(model, tuple(model.parameters()), seed=s)(INPUTS).gradients[1]
        for s in (0, 1)
    )
    assert not torch.equal(one, other)


def test_outputs_without_gradient_are_skipped():
    model = nn.Linear(3, 4)

    def call(x):
        return x.detach() * 2, model(x), torch.arange(3)

    outputs = training_step(call, tuple(model.parameters()))(INPUTS)
    assert len(outputs.tensors) == 3
    assert outputs.gradients[0] is not None


def test_unused_parameter_has_no_gradient():
    model = nn.Linear(3, 4)
    spare = nn.Parameter(torch.ones(2))
    outputs = training_step(model, (*model.parameters(), spare))(INPUTS)
    assert outputs.gradients[2] is None


def test_training_without_trainable_parameter_says_so():
    model = nn.Linear(3, 4).requires_grad_(False)
    assert trainable(model) == {}
    with pytest.raises(
        ModelError, match="no output of the model depends on a trainable parameter"
    ):
        training_step(model, ())(INPUTS)


def test_gradients_work_under_no_grad_of_the_caller():
    model = nn.Linear(3, 4)
    with torch.no_grad():
        outputs = training_step(model, tuple(model.parameters()))(INPUTS)
    assert outputs.gradients[0] is not None


def test_tied_parameters_are_trained_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert list(trainable(model)) == ["0.weight", "0.bias", "1.bias"]
