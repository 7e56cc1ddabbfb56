"""A candidate against the reference: what is right, and each way to be wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thunder_tune.measure.accuracy import INPUTS, Judge, Rejected
from thunder_tune.measure.steps import (
    forward_step,
)
from thunder_tune.testing.judged import (
    BATCH,
    CLASSES,
    WIDTH,
    make_inputs,
    rejection,
)
from thunder_tune.values.codec import from_json, to_json
from thunder_tune.values.trial import Accuracy


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


def test_output_never_written_that_shows_values_of_its_own_call_is_unwritten(
    judge, model, monkeypatch
):
    """Memory freed in a call is what an allocator gives the same call again."""
    freed = []
    monkeypatch.setattr(torch, "empty_like", lambda x: freed.pop())

    def candidate(x):
        out = model(x)
        freed.append(out * 1.7)
        return torch.empty_like(out)

    found = rejection(judge, candidate)
    assert found.kind == "unwritten"
    assert "100.000%" in str(found)
    freed.append(torch.ones(1))
    assert torch.empty_like(torch.ones(1)).item() == 1.0, "nothing is poisoned after"


def test_half_written_memory_of_its_own_call_is_unwritten(judge, model, monkeypatch):
    freed = []
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda x, shape: freed.pop())

    def candidate(x):
        out = model(x)
        freed.append(out * 1.7)
        result = out.new_empty(out.shape)
        result[: BATCH // 2].copy_(out[: BATCH // 2])
        return result

    found = rejection(judge, candidate)
    assert found.kind == "unwritten"
    assert "50.000%" in str(found)


def test_a_wrong_answer_in_memory_that_was_asked_for_stays_wrong(judge, model):
    def candidate(x):
        out = model(x)
        return torch.empty_like(out).copy_(out * 1.7)

    assert rejection(judge, candidate).kind == "wrong"


def test_a_wrong_candidate_that_fails_when_it_is_asked_again_stays_wrong(judge, model):
    calls = []

    def candidate(x):
        calls.append(x)
        if len(calls) > INPUTS + 2:
            raise RuntimeError("planted")
        return model(x) * 1.7

    assert rejection(judge, candidate).kind == "wrong"
    assert len(calls) == INPUTS + 3


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


def test_overflow_in_one_element_of_one_input_is_not_finite(judge, model):
    victim = judge._reference.cases[-1].inputs.args[0]

    def candidate(x):
        out = model(x)
        if torch.equal(x, victim):
            out[-1, -1] = (out[-1, -1].half() * 1e8).float()
        return out

    assert rejection(judge, candidate).kind == "not-finite"


def test_overflow_that_a_saturating_function_hides_is_wrong():
    class Saturating(nn.Linear):
        def forward(self, x):
            return torch.atan(super().forward(x) * 1e5 / 5e4)

    model = Saturating(WIDTH, CLASSES)
    judge = Judge(model, make_inputs, device="cpu", policies=["mixed"])

    def candidate(x):
        hidden = (nn.functional.linear(x, model.weight, model.bias) * 1e5).half()
        return torch.atan(hidden.float() / 5e4)

    assert candidate(judge.inputs[0].args[0]).isfinite().all()
    assert rejection(judge, candidate).kind == "wrong"


@pytest.mark.parametrize("policy", ["same", "mixed"])
def test_skipped_tile_of_a_sum_is_wrong(policy):
    model = nn.Linear(WIDTH, CLASSES)
    judge = Judge(model, make_inputs, device="cpu", policies=[policy])
    found = rejection(
        judge, lambda x: nn.functional.linear(x[:, :-2], model.weight[:, :-2], model.bias)
    )
    assert found.kind == "wrong"


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
