from __future__ import annotations

import pytest
import torch

from thunder_tune.errors import InputError
from thunder_tune.measure.kernels import LONGEST_NAME, profile_step, short_name
from thunder_tune.measure.profile_events import PYTHON, RANGE
from thunder_tune.measure.steps import Arguments, forward_step
from thunder_tune.values.job import TimingRequest

BRIEF = TimingRequest(precision=0.5, min_repeats=3, max_s=0.05)


def model(x):
    return torch.relu(x @ x)


def marked(x):
    with torch.profiler.record_function(f"{RANGE}0"):
        y = x @ x
    with torch.profiler.record_function(f"{RANGE}1"):
        return torch.relu(y)


def test_operators_and_statements_of_a_call():
    profile = profile_step(
        forward_step(model),
        [Arguments((torch.randn(64, 64),))],
        device="cpu",
        marked=forward_step(marked),
        calls=3,
        request=BRIEF,
    )
    kernels = {k.name: k for k in profile.kernels}
    assert kernels["aten::mm"].ranges == (0,)
    assert kernels["aten::mm"].times == 1
    assert kernels["aten::relu"].ranges == (1,)
    assert set(profile.ranges) == {0, 1}
    assert profile.clock == "host"
    assert profile.work_ms == pytest.approx(sum(k.ms for k in profile.kernels))
    assert kernels[PYTHON].times == 3  # the call's, and each statement's


def test_statements_are_not_known_of_a_program_that_is_not_marked():
    inputs = [Arguments((torch.randn(8, 8),)), Arguments((torch.randn(8, 8),))]
    profile = profile_step(forward_step(model), inputs, device="cpu", calls=2, request=BRIEF)
    assert profile.ranges == {}
    assert all(k.ranges == () for k in profile.kernels)


def test_no_calls_are_refused():
    with pytest.raises(InputError, match="calls 0: must be at least 1"):
        profile_step(forward_step(model), [Arguments()], device="cpu", calls=0)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("aten::addmm", "aten::addmm"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
            "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, int)",
            "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, 1ul> >",
        ),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, 7>(float*, int)",
            "softmax_warp_forward<float, 7>",
        ),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
        (f"## Call CompiledFxGraph f{'a1' * 25} ##", "## Call CompiledFxGraph fa1a1a1a ##"),
    ],
)
def test_names_for_a_table(name, short):
    assert short_name(name) == short


def test_a_long_name_keeps_both_ends():
    name = "nvjet_tst_" + "x" * 90 + "_TNT_bias_GELU"
    short = short_name(name)
    assert len(short) == LONGEST_NAME
    assert short.startswith("nvjet_tst_x")
    assert short.endswith("x_TNT_bias_GELU")


@pytest.mark.gpu
class TestOnADevice:
    def inputs(self):
        return [Arguments((torch.randn(256, 256, device="cuda"),))]

    def test_kernels_belong_to_the_statements_that_launch_them(self):
        profile = profile_step(
            forward_step(model),
            self.inputs(),
            device="cuda",
            marked=forward_step(marked),
            calls=3,
            request=BRIEF,
        )
        assert profile.clock == "device"
        assert set(profile.ranges) == {0, 1}
        assert all(ms > 0 for ms in profile.ranges.values())
        assert {r for k in profile.kernels for r in k.ranges} == {0, 1}
        assert sum(profile.ranges.values()) == pytest.approx(profile.work_ms, rel=0.3)

    def test_a_replay_is_told_by_its_kernels_names(self):
        (given,) = self.inputs()
        (x,) = given.args
        for _ in range(3):
            model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(x)

        def replay(x):
            graph.replay()
            return result

        profile = profile_step(
            forward_step(replay),
            [given],
            device="cuda",
            marked=forward_step(marked),
            replays=True,
            calls=3,
            request=BRIEF,
        )
        assert {r for k in profile.kernels for r in k.ranges} == {0, 1}
