"""Judging on a device: CUDA graphs, unwritten memory, training, large references."""

from __future__ import annotations

import pytest
import torch

from thunder_tune.measure.accuracy import Judge, Rejected
from thunder_tune.measure.steps import (
    Arguments,
    forward_step,
    trainable,
    training_step,
)
from thunder_tune.testing.judged import (
    BATCH,
    CLASSES,
    make_inputs,
    make_model,
)


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
