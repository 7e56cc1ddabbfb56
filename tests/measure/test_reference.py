"""The reference: its precision, its fallbacks, and what cannot be judged."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

from thunder_tune.errors import ModelError
from thunder_tune.measure.accuracy import Judge, NotJudgeable
from thunder_tune.measure.steps import (
    Arguments,
    forward_step,
    trainable,
    training_step,
)
from thunder_tune.testing.judged import (
    BATCH,
    CLASSES,
    WIDTH,
    make_bf16,
    make_inputs,
    make_model,
    rejection,
)


class Rotation(nn.Module):
    """cos * x + (-y) * sin, where the products nearly cancel."""

    def forward(self, x, y, cos, sin):
        return cos * x + (-y) * sin


def make_rotation(seed):
    generator = torch.Generator().manual_seed(seed)
    angle = torch.rand(BATCH, WIDTH, generator=generator) * 1.2 + 0.2
    x = torch.randn(BATCH, WIDTH, generator=generator)
    near = torch.randn(BATCH, WIDTH, generator=generator)
    y = x * torch.cos(angle) / torch.sin(angle) + 0.02 * near
    return Arguments(tuple(t.bfloat16() for t in (x, y, torch.cos(angle), torch.sin(angle))))


def test_nearer_to_the_truth_than_eager_is_accepted():
    model = Rotation()
    judge = Judge(model, make_rotation, device="cpu")

    def fused(*args):
        x, y, cos, sin = (a.float() for a in args)
        return (cos * x + (-y) * sin).bfloat16()

    first = make_rotation(0).args
    assert not torch.allclose(fused(*first), model(*first), rtol=0.05, atol=1e-5)
    accuracy = judge.judge(forward_step(fused))
    assert accuracy.error_ratio < 0.5
    assert accuracy.policies == {"same": True}


class WithName(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return {"features": self.inner(x)}


def test_bf16_model_is_judged_by_its_own_precision():
    model = WithName(make_model(torch.bfloat16))
    judge = Judge(model, make_bf16, device="cpu", policies=["same", "mixed", "low"])
    wide = make_model().bfloat16().float()
    better = judge.judge(forward_step(lambda x: wide(x.float()).bfloat16()))
    assert better.error_ratio == 1.0  # both are off by the rounding of the result alone
    assert better.top1_agreement is None
    worse = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in worse.parameters():  # 3 bits of significand, as float8_e4m3 has
            parameter.copy_(parameter.to(torch.float8_e4m3fn).to(torch.bfloat16))
    found = rejection(judge, worse)
    assert found.accuracy.policies == {"same": False, "mixed": False, "low": True}


def test_bf16_computation_of_a_float32_model_is_mixed_not_same(model):
    half = make_model(torch.bfloat16)

    def candidate(x):
        return half(x.bfloat16()).float()

    strict = Judge(model, make_inputs, device="cpu", policies=["same", "mixed"])
    found = rejection(strict, candidate)
    assert found.accuracy.policies == {"same": False, "mixed": True}
    lax = Judge(model, make_inputs, device="cpu", policies=["mixed", "same"])
    assert lax.judge(forward_step(candidate)).policies == {"mixed": True, "same": False}


class CastingInside(nn.Module):
    """Casts to types of its own choice, as norms and masks do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        ramp = torch.arange(WIDTH, dtype=torch.float32) / 100 + torch.ones(WIDTH)
        return torch.softmax(self.linear(y.to(x.dtype)) * ramp, -1, dtype=torch.float32)


def test_casts_inside_the_model_do_not_narrow_the_reference():
    model = CastingInside()
    judge = Judge(model, make_inputs, device="cpu")
    wide = copy.deepcopy(model).double()
    x = judge.inputs[0].args[0].double()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    ramp = torch.arange(WIDTH, dtype=torch.float64) / 100 + 1
    expected = torch.softmax(wide.linear(y) * ramp, -1)
    found = judge._reference.cases[0].targets[0].tensor
    assert found.dtype == torch.float64
    assert torch.allclose(found, expected, rtol=1e-13, atol=0)


class NoFloat64(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        if x.dtype == torch.float64:
            raise NotImplementedError("this op has no float64")
        return self.linear(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_reference_falls_back_to_float32(dtype):
    model = NoFloat64().to(dtype)
    judge = Judge(model, lambda seed: make_inputs(seed, dtype), device="cpu")
    assert judge.reference == "float32"
    assert judge.judge(forward_step(model)).reference == "float32"

    def other_order(x):
        flipped = torch.arange(WIDTH - 1, -1, -1)
        weight = model.linear.weight[:, flipped]
        return nn.functional.linear(x[:, flipped], weight, model.linear.bias)

    assert judge.judge(forward_step(other_order)).policies["same"]
    assert rejection(judge, lambda x: model(x) * 1.02).kind == "wrong"


def no_room(model, dtype):
    raise torch.OutOfMemoryError(f"no room for a copy in {dtype}")


def test_without_room_for_a_wide_copy_weights_are_widened_as_used(monkeypatch):
    model = make_model(torch.bfloat16)
    expected = Judge(model, make_bf16, device="cpu").judge(forward_step(model))
    monkeypatch.setattr("thunder_tune.measure.reference.widened_model", no_room)
    judge = Judge(model, make_bf16, device="cpu")
    accuracy = judge.judge(forward_step(model))
    assert judge.reference == accuracy.reference == "float64"
    assert accuracy.relative_error == pytest.approx(expected.relative_error, rel=1e-3)
    assert rejection(judge, lambda x: model(x) * 1.02).kind == "wrong"


def test_gradients_need_a_wide_copy(monkeypatch):
    monkeypatch.setattr("thunder_tune.measure.reference.widened_model", no_room)
    with pytest.raises(NotJudgeable, match=r"float64: no room .*; float32: no room"):
        Judge(make_model(), make_inputs, device="cpu", training=True)


def test_model_without_any_reference_is_not_judgeable():
    class OwnTypeOnly(NoFloat64):
        def forward(self, x):
            if x.dtype != torch.bfloat16:
                raise RuntimeError("bfloat16 kernel")
            return self.linear(x)

    with pytest.raises(NotJudgeable, match=r"no reference can be computed.*bfloat16 kernel"):
        Judge(OwnTypeOnly().bfloat16(), make_bf16, device="cpu")


def zero_head(model):
    head = make_model()
    nn.init.zeros_(head[-1].weight)
    nn.init.zeros_(head[-1].bias)
    return head


def biased_head(model):
    head = zero_head(model)
    nn.init.normal_(head[-1].bias)
    return head


def constant_head(model):
    head = zero_head(model)
    nn.init.ones_(head[-1].bias)
    return head


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (zero_head, "output is zero for every input: initialise"),
        (constant_head, "output has one value in all its elements"),
        (biased_head, "output does not vary with the input: return only"),
        (lambda model: nn.Sequential(model, nn.Dropout(0.5)).train(), "random.*dropout"),
    ],
)
def test_output_that_says_nothing_is_not_judgeable(model, change, message):
    with pytest.raises(NotJudgeable, match=message) as caught:
        Judge(change(model), make_inputs, device="cpu")
    assert caught.value.kind == "not-judgeable"
    assert caught.value.exit_status == 1


def test_one_zero_output_among_others_is_not_judgeable():
    class Two(nn.Module):
        def forward(self, x):
            return {"features": x * 2, "logits": x[:, :3] * 0}

    with pytest.raises(NotJudgeable, match=r"output\['logits'\] is zero"):
        Judge(Two(), make_inputs, device="cpu")


def test_fixed_integers_beside_an_output_are_judged():
    class WithPositions(nn.Module):
        def forward(self, x):
            return x.sin(), torch.arange(WIDTH)

    judge = Judge(WithPositions(), make_inputs, device="cpu")
    judge.judge(forward_step(lambda x: (x.sin(), torch.arange(WIDTH))))
    found = rejection(judge, lambda x: (x.sin(), torch.arange(WIDTH) + 1))
    assert found.kind == "wrong"


def test_inputs_that_ignore_the_seed_are_named(model):
    with pytest.raises(NotJudgeable, match="same values for every seed"):
        Judge(model, lambda seed: make_inputs(0), device="cpu")


def test_answers_lost_in_rounding_are_not_judgeable():
    class Lost(nn.Module):
        def forward(self, x):
            return torch.linspace(1, 2, WIDTH, dtype=x.dtype) + x * 1e-3

    with pytest.raises(NotJudgeable, match="hardly varies with the input"):
        Judge(Lost(), make_bf16, device="cpu")


def test_overflow_of_eager_itself_is_not_judgeable():
    class Large(nn.Module):
        def forward(self, x):
            return (x * 1e4).square()

    with pytest.raises(NotJudgeable, match=r"NaN or infinite in torch.float16.*bfloat16"):
        Judge(Large(), lambda seed: make_inputs(seed, torch.float16), device="cpu")


def test_infinities_of_the_model_are_not_held_against_a_candidate():
    class Masked(nn.Module):
        def forward(self, x):
            return x.sin().masked_fill(torch.arange(WIDTH) < 5, float("-inf"))

    model = Masked()
    judge = Judge(model, make_inputs, device="cpu")
    assert judge.judge(forward_step(model)).error_ratio == 1.0


def test_model_that_raises_is_named_with_its_place():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("no such thing\nand more")

    with pytest.raises(
        ModelError, match=r"raised ValueError: no such thing \(.*test_reference.py:"
    ):
        Judge(Broken(), make_inputs, device="cpu")


def test_inputs_that_do_not_fit_are_told_without_a_place_of_ours(model):
    def wrong(seed):
        return Arguments((), {"images": torch.zeros(1)})

    said = r"^the model cannot be called with these inputs: TypeError: .*'images'$"
    with pytest.raises(ModelError, match=said):
        Judge(model, wrong, device="cpu")


def test_model_without_tensor_is_refused():
    class Wordy(nn.Module):
        def forward(self, x):
            return {"text": "hello"}

    with pytest.raises(ModelError, match="returned dict without any tensor"):
        Judge(Wordy(), make_inputs, device="cpu")


def test_model_that_cannot_be_copied_is_named():
    class Single(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("there is one of me")

    with pytest.raises(ModelError, match=r"cannot be copied.*there is one of me"):
        Judge(Single(WIDTH, 4), make_inputs, device="cpu")


class Counting(nn.Module):
    """Adds a buffer that every call changes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.linear(x) + self.calls


def test_state_of_the_model_is_put_back_before_every_run():
    model = Counting()
    judge = Judge(model, make_inputs, device="cpu")
    assert model.calls.item() == 0
    assert judge.judge(forward_step(model)).error_ratio == 1.0
    assert model.calls.item() == 0


def test_batch_norm_keeps_its_statistics():
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.Linear(32, CLASSES)).train()
    before = copy.deepcopy(model.state_dict())
    judge = Judge(model, make_inputs, device="cpu", training=True)
    accuracy = judge.judge(training_step(model, tuple(trainable(model).values())))
    assert accuracy.gradient_error_ratio == 1.0
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_named_outputs_agree_on_logits_alone():
    @dataclasses.dataclass
    class Result:
        logits: torch.Tensor
        hidden: torch.Tensor

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, CLASSES)

        def forward(self, x):
            hidden = x.sin()
            return Result(self.linear(hidden), hidden)

    model = Named()
    judge = Judge(model, make_inputs, device="cpu", policies=["any"])

    def candidate(x):
        result = model(x)
        return {"logits": result.logits, "hidden": -result.hidden}

    accuracy = judge.judge(forward_step(candidate))
    assert accuracy.top1_agreement == 1.0
    assert accuracy.cosine == pytest.approx(-1.0)


def test_complex_outputs_are_judged():
    class Spectrum(nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x)

    model = Spectrum()
    judge = Judge(model, make_inputs, device="cpu")
    assert judge.judge(forward_step(model)).error_ratio == 1.0
    assert rejection(judge, lambda x: torch.fft.rfft(x).conj()).kind == "wrong"
