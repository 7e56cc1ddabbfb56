from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

from thunder_tune.errors import InputError, ModelError
from thunder_tune.measure.accuracy import Judge, NotJudgeable, Rejected, load_metric
from thunder_tune.measure.steps import (
    Arguments,
    Outputs,
    forward_step,
    trainable,
    training_step,
)
from thunder_tune.values.codec import from_json, to_json
from thunder_tune.values.trial import Accuracy

BATCH, WIDTH, CLASSES = 16, 64, 48


def make_inputs(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return Arguments((torch.randn(BATCH, WIDTH, generator=generator).to(dtype),))


def make_bf16(seed):
    return make_inputs(seed, torch.bfloat16)


def make_model(dtype=torch.float32):
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, CLASSES)
        )
    return model.eval().to(dtype)


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def judge(model):
    return Judge(model, make_inputs, device="cpu", policies=["same", "mixed", "low", "any"])


@pytest.fixture(scope="module")
def training_judge(model):
    return Judge(model, make_inputs, device="cpu", training=True)


def rejection(judge, candidate):
    with pytest.raises(Rejected, match=r".") as caught:
        judge.judge(forward_step(candidate))
    return caught.value


def test_the_model_itself_is_as_good_as_eager(judge, model):
    accuracy = judge.judge(forward_step(model))
    assert accuracy.error_ratio == 1.0
    assert accuracy.relative_error < 1e-5
    assert accuracy.cosine == pytest.approx(1.0)
    assert accuracy.top1_agreement == 1.0
    assert accuracy.gradient_error_ratio is None
    assert accuracy.policies == {"same": True, "mixed": True, "low": True, "any": True}
    assert (accuracy.reference, accuracy.inputs) == ("float64", 4)


def test_the_last_inputs_are_held_out_of_timing(judge):
    assert len(judge.inputs) == 3
    seen = []

    def watching(x):
        seen.append(x)
        return judge._model(x)

    judge.judge(forward_step(watching))
    timed = [i.args[0] for i in judge.inputs]
    assert sum(not any(torch.equal(x, t) for t in timed) for x in seen) == 2


def test_fresh_seeds_give_fresh_inputs(judge, model):
    fresh = judge.for_seed(7)
    assert not any(torch.equal(a.args[0], b.args[0]) for a in fresh.inputs for b in judge.inputs)
    assert fresh.judge(forward_step(model)).error_ratio == 1.0


def test_constant_output_is_wrong(judge, model):
    constant = model(*make_inputs(99).args).detach()
    found = rejection(judge, lambda x: constant.clone())
    assert found.kind == "wrong"
    assert found.accuracy is not None
    assert found.accuracy.policies == {"same": False, "mixed": False, "low": False, "any": True}
    assert from_json(Accuracy, to_json(found.accuracy)) == found.accuracy


def test_zeros_are_wrong_and_their_accuracy_can_be_stored(judge):
    found = rejection(judge, lambda x: torch.zeros(BATCH, CLASSES))
    assert found.kind == "wrong"
    assert to_json(found.accuracy)


def test_right_on_the_first_input_alone_is_wrong(judge, model):
    remembered = []

    def candidate(x):
        remembered.append(model(x))
        return remembered[0].clone()

    found = rejection(judge, candidate)
    assert found.kind == "wrong"
    assert "answer to another" in str(found)
    assert not any(found.accuracy.policies.values())


@pytest.mark.parametrize("wrong_one", range(4))
def test_wrong_on_any_one_input_is_wrong(judge, model, wrong_one):
    victim = judge._reference.cases[wrong_one].inputs.args[0]

    def candidate(x):
        out = model(x)
        return out + 0.05 * torch.sin(out * 100) if torch.equal(x, victim) else out

    found = rejection(judge, candidate)
    assert found.kind == "wrong"
    assert found.accuracy.policies["any"]
    assert not found.accuracy.policies["same"]


def test_one_whole_input_confused_with_another_is_wrong_under_low(model):
    lax = Judge(model, make_inputs, device="cpu", policies=["low"])
    held_out = lax._reference.cases[-1].inputs.args[0]
    other = lax.inputs[0].args[0]
    found = rejection(lax, lambda x: model(other if torch.equal(x, held_out) else x))
    assert found.kind == "wrong"


@pytest.mark.parametrize("policy", ["same", "mixed", "low"])
def test_skipped_tail_is_wrong_under_every_policy(model, policy):
    judge = Judge(model, make_inputs, device="cpu", policies=[policy])

    def candidate(x):
        out = model(x)
        out.view(-1)[-5:] = 0.0
        return out

    found = rejection(judge, candidate)
    assert found.kind == "wrong"
    assert "output" in str(found)


def test_small_wrong_part_of_a_large_output_is_wrong_under_low():
    model = nn.Linear(WIDTH, 4096, bias=False)
    judge = Judge(model, make_inputs, device="cpu", policies=["low"])

    def candidate(x):
        out = model(x)
        out[-1, -64:] = 0.0
        return out

    found = rejection(judge, candidate)
    assert found.accuracy.relative_error < 0.125
    assert "part" in str(found)


def test_stale_buffer_is_wrong(judge, model):
    buffer = torch.zeros(BATCH, CLASSES)
    before = torch.zeros(BATCH, CLASSES)

    def candidate(x):
        buffer.copy_(before)
        before.copy_(model(x))
        return buffer

    assert rejection(judge, candidate).kind == "wrong"


def test_static_output_buffer_that_is_rewritten_is_right(judge, model):
    buffer = torch.zeros(BATCH, CLASSES)

    def candidate(x):
        buffer.copy_(model(x))
        return buffer

    assert judge.judge(forward_step(candidate)).error_ratio == 1.0


def test_static_output_buffer_that_is_half_written_is_unwritten(judge, model):
    buffer = torch.zeros(BATCH, CLASSES)

    def candidate(x):
        buffer[: BATCH // 2].copy_(model(x)[: BATCH // 2])
        return buffer

    found = rejection(judge, candidate)
    assert found.kind == "unwritten"
    assert "50" in str(found)


def test_output_never_written_is_unwritten(judge):
    assert rejection(judge, lambda x: torch.empty(BATCH, CLASSES)).kind == "unwritten"


def test_integer_output_never_written_is_unwritten():
    class Predicting(nn.Module):
        def forward(self, x):
            return x * 2, x.argmax(-1)

    judge = Judge(Predicting(), make_inputs, device="cpu")
    indices = torch.zeros(BATCH, dtype=torch.int64)

    def candidate(x):
        indices[:-3] = x.argmax(-1)[:-3]
        return x * 2, indices

    assert rejection(judge, candidate).kind == "unwritten"


def test_nan_is_not_finite(judge, model):
    def candidate(x):
        out = model(x)
        out[0, 0] = float("nan")
        return out

    assert rejection(judge, candidate).kind == "not-finite"


def test_overflow_is_not_finite(judge, model):
    found = rejection(judge, lambda x: (model(x).half() * 1e6).float() / 1e6)
    assert found.kind == "not-finite"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: out[:-1], r"float32\[15, 48\] instead of float32\[16, 48\]"),
        (lambda out: out.bfloat16(), r"bfloat16\[16, 48\] instead of float32"),
        (lambda out: (out, out), "2 outputs instead of 1"),
    ],
)
def test_other_form_is_wrong_shape(judge, model, change, message):
    with pytest.raises(Rejected, match=message) as caught:
        judge.judge(forward_step(lambda x: change(model(x))))
    assert caught.value.kind == "wrong-shape"


def test_noise_is_unstable(judge, model):
    calls = iter(range(1000))

    def candidate(x):
        out = model(x)
        noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(next(calls)))
        return out + 1e-3 * noise

    assert rejection(judge, candidate).kind == "unstable"


def test_rounding_in_another_order_is_stable(judge, model):
    calls = iter(range(1000))

    def candidate(x):
        out = model(x)
        return out * (1 + 1e-7 * (next(calls) % 2))

    assert judge.judge(forward_step(candidate)).policies["same"]


def test_random_numbers_of_the_candidate_come_from_equal_states(judge, model):
    def candidate(x):
        return model(x) + 0 * torch.rand(CLASSES)

    assert judge.judge(forward_step(candidate)).policies["same"]


def test_judging_leaves_random_state_alone(judge, model):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    judge.judge(forward_step(model))
    assert torch.equal(torch.rand(3), expected)


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
        ModelError, match=r"raised ValueError: no such thing \(.*test_accuracy.py:"
    ):
        Judge(Broken(), make_inputs, device="cpu")


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


# Training


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


# Metrics and arguments


def largest_gap(outputs, references):
    return -max(float((o - r).abs().max()) for o, r in zip(outputs, references, strict=True))


METRIC = f"{__name__}:largest_gap"


@pytest.fixture
def own_metric(monkeypatch):
    monkeypatch.setitem(
        __import__("sys").modules,
        "user_metric",
        __import__("types").SimpleNamespace(
            largest_gap=largest_gap, broken=lambda outputs, references: 1 / 0, number=3
        ),
    )


@pytest.mark.usefixtures("own_metric")
def test_own_metric_decides(model):
    judge = Judge(model, make_inputs, device="cpu", metric=("user_metric:largest_gap", -0.02))
    accuracy = judge.judge(forward_step(lambda x: model(x) + 0.01))
    assert accuracy.policies == {"same": False, "metric": True}
    with pytest.raises(Rejected, match=r"metric -0.03\d* is below -0.02") as caught:
        judge.judge(forward_step(lambda x: model(x) + 0.03))
    assert caught.value.kind == "wrong"


@pytest.mark.usefixtures("own_metric")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("largest_gap", "write it as package.module:function"),
        ("user_metric:missing", "cannot be imported"),
        ("no.such.module:f", "cannot be imported"),
        ("user_metric:number", "is not a function"),
    ],
)
def test_unknown_metric_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        load_metric(name)


@pytest.mark.usefixtures("own_metric")
def test_metric_that_raises_is_named(model):
    judge = Judge(model, make_inputs, device="cpu", metric=("user_metric:broken", 0.0))
    with pytest.raises(InputError, match="the metric raised ZeroDivisionError"):
        judge.judge(forward_step(model))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": 1}, "at least 2"),
        ({"policies": ["exact"]}, "unknown policy 'exact'"),
        ({"policies": []}, "no policy"),
    ],
)
def test_bad_arguments_are_refused(model, arguments, message):
    with pytest.raises(InputError, match=message):
        Judge(model, make_inputs, device="cpu", **arguments)


# On a device


def cuda_inputs(seed):
    return Arguments(tuple(t.bfloat16().cuda() for t in make_inputs(seed).args))


@pytest.fixture
def cuda_model():
    return make_model(torch.bfloat16).cuda()


def graphed(model, example, *, copies_input=True):
    """Replay a CUDA graph of the model from static buffers."""
    static = example.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        model(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = model(static)

    def call(x):
        if copies_input:
            static.copy_(x)
        graph.replay()
        return out

    return call


@pytest.mark.gpu
def test_cuda_graph_is_right_and_its_stale_input_wrong(cuda_model):
    judge = Judge(cuda_model, cuda_inputs, device="cuda")
    example = judge.inputs[0].args[0]
    accuracy = judge.judge(forward_step(graphed(cuda_model, example)))
    assert accuracy.policies == {"same": True}
    assert judge.held_bytes > 0
    stale = graphed(cuda_model, example, copies_input=False)
    with pytest.raises(Rejected, match="answer to another") as caught:
        judge.judge(forward_step(stale))
    assert caught.value.kind == "wrong"


@pytest.mark.gpu
def test_output_never_written_on_a_device_is_unwritten(cuda_model):
    judge = Judge(cuda_model, cuda_inputs, device="cuda")

    def candidate(x):
        return torch.empty(BATCH, CLASSES, dtype=torch.bfloat16, device="cuda")

    with pytest.raises(Rejected, match="never written") as caught:
        judge.judge(forward_step(candidate))
    assert caught.value.kind == "unwritten"


@pytest.mark.gpu
def test_training_is_judged_on_a_device(cuda_model):
    judge = Judge(cuda_model, cuda_inputs, device="cuda", training=True)
    accuracy = judge.judge(training_step(cuda_model, tuple(trainable(cuda_model).values())))
    assert accuracy.gradient_error_ratio == 1.0
    assert accuracy.reference == "float64"


@pytest.mark.gpu
def test_references_beyond_a_share_of_the_device_stay_on_the_host(cuda_model, monkeypatch):
    real = torch.cuda.get_device_properties

    class Small:
        total_memory = 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Small)
    judge = Judge(cuda_model, cuda_inputs, device="cuda")
    monkeypatch.setattr(torch.cuda, "get_device_properties", real)
    assert judge.held_bytes == 0
    assert judge.judge(forward_step(cuda_model)).error_ratio == 1.0
