from __future__ import annotations

import pytest
import torch
from torch import nn

from thunder_tune.program import capture
from thunder_tune.program.state import unchanged


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("nothing", None)

    def forward(self, x):
        self.calls.add_(1)
        return torch.dropout(self.norm(x), 0.5, self.training) + self.calls


@pytest.mark.parametrize("front_end", ["dynamo", "auto"])
@pytest.mark.parametrize("training", [False, True])
def test_a_captured_model_is_as_it_was(front_end, training):
    model = Counting().train(training)
    before = {name: b.clone() for name, b in model.named_buffers()}
    versions = {id(p): p._version for p in model.parameters()}
    state = torch.get_rng_state()
    with torch.set_grad_enabled(training):
        found = capture(model, (torch.randn(8, 4),), {}, front_end=front_end, training=training)
    assert found.program.is_captured
    state_after = torch.get_rng_state()
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
    assert {id(p): p._version for p in model.parameters()} == versions
    torch.set_rng_state(state)
    torch.randn(8, 4)  # what the test itself drew
    assert torch.equal(torch.get_rng_state(), state_after)


def test_a_buffer_that_is_replaced_comes_back():
    model = Counting()
    kept = model.calls
    with unchanged(model):
        model.calls = torch.full((), 7.0)
    assert model.calls is kept


def test_buffers_are_put_back_where_the_block_raises():
    model = Counting()

    def halfway():
        with unchanged(model):
            model.calls.add_(1)
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        halfway()
    assert model.calls == 0


def test_what_was_not_written_keeps_its_version():
    model = Counting()
    version = model.norm.running_mean._version
    with unchanged(model):
        model.calls.add_(1)
    assert model.norm.running_mean._version == version


def test_a_function_has_no_buffers():
    with unchanged(torch.sin):
        pass
