"""Whole-program back ends run a model as their documentation says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thunder_tune.compiler.backends import BACK_ENDS, ChannelsLast, code_of, whole_program
from thunder_tune.values.source import ModelSource
from thunder_tune.values.study import CHANNELS_LAST, baselines_for, peers_for


class Layouts(nn.Module):
    """Notes the strides of images and weights that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.seen: list[bool] = []

    def forward(self, images: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Convolve, and note whether channels come last."""
        last = torch.channels_last
        for tensor in (images, self.conv.weight):
            self.seen.append(tensor.is_contiguous(memory_format=last))
        return self.conv(images) * scale


@torch.no_grad()
def test_channels_last_runs_a_copy_and_leaves_the_model_alone():
    model, images, scale = Layouts(), torch.randn(2, 3, 8, 8), torch.ones(1)
    program = whole_program(model, f"eager{CHANNELS_LAST}")
    assert isinstance(program, ChannelsLast)
    torch.testing.assert_close(program(images, scale=scale), model(images, scale))
    assert program.inner.seen == [True, True]
    assert model.seen == [False, False]


@torch.no_grad()
@pytest.mark.parametrize("end", ["", CHANNELS_LAST])
@pytest.mark.parametrize("back_end", ["eager", "torch.compile"])
def test_the_code_that_is_printed_is_what_runs(back_end, end, monkeypatch):
    name = back_end + end
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    names = {"torch": torch, "model": nn.Conv2d(3, 4, 3), "images": torch.randn(2, 3, 8, 8)}
    expected = whole_program(names["model"], name)(names["images"])
    exec(code_of(name).replace("model as it is", ""), names)
    torch.testing.assert_close(names["model"](names["images"]), expected)
    is_last = names["images"].is_contiguous(memory_format=torch.channels_last)
    assert is_last is name.endswith(CHANNELS_LAST)


@pytest.mark.parametrize("name", BACK_ENDS)
def test_every_back_end_can_be_written_down(name):
    assert code_of(name).startswith("model")
    assert (name.partition(":")[2] or name.partition(":")[0].replace("eager", "")) in code_of(name)


def test_channels_last_is_for_modules():
    with pytest.raises(TypeError, match="for modules, not function"):
        whole_program(lambda x: x, f"eager{CHANNELS_LAST}")


@pytest.mark.parametrize(
    ("kinds", "mode", "more"),
    [
        ({"conv", "linear"}, "inference", 2),
        ({"conv", "linear"}, "train", 0),
        ({"conv", "sdpa"}, "inference", 0),
        ({"linear"}, "inference", 0),
    ],
)
def test_who_is_offered_channels_last(kinds, mode, more):
    own = baselines_for("cpu")
    found = peers_for(ModelSource(name="m", mode=mode), kinds)
    assert (found[: len(own)], len(found)) == (own, len(own) + more)
