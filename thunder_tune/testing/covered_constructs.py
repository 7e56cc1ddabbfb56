"""What real programs do besides layers: breaks, containers, ties, masks, changes in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.models.inputs import Inputs
from thunder_tune.testing.covered import Covered, floats, keywords, positional, tokens
from thunder_tune.testing.small_models import DictModel, GraphBreak

WIDTH = 16


@dataclass
class Answer:
    """Two tensors and a number."""

    logits: torch.Tensor
    hidden: torch.Tensor
    layers: int


class DataclassOutput(nn.Module):
    """Nested inputs, a dataclass as output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, 5)

    def forward(self, batch: dict[str, torch.Tensor], *, scale: torch.Tensor) -> Answer:
        """Answer with logits and hidden features."""
        hidden = torch.tanh(self.first(batch["x"]) * scale + batch["shift"])
        return Answer(logits=self.second(hidden), hidden=hidden, layers=2)


class TiedMasked(nn.Module):
    """Embedding and head share one weight; attention with a padding mask."""

    def __init__(self, vocabulary: int = 61) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Predict tokens; `mask` is 1 where a token counts."""
        x = self.embedding(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / WIDTH**0.5
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, :] == 0, torch.finfo(scores.dtype).min)
        x = x + F.softmax(scores, -1) @ v
        out: torch.Tensor = self.head(x)
        return out


class ChangesInPlace(nn.Module):
    """In-place arithmetic on intermediates, and on views of them before anything else reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map rows to rows."""
        y = self.linear(x)
        y += x
        y.mul_(2.0).sub_(0.5)
        y[:, 0] = y[:, 0] * 0.5
        z = y.view(-1, 4, WIDTH // 4)
        z.mul_(1.5)
        y.add_(1.0)
        out: torch.Tensor = F.leaky_relu(y * x, 0.1, inplace=True) + z.flatten(1).sigmoid()
        return out


class ChangesBuffers(nn.Module):
    """A counter and a running mean that every call moves."""

    calls: torch.Tensor
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Centre rows by the running mean of all rows seen."""
        y = self.linear(x)
        if self.training:
            with torch.no_grad():
                self.calls.add_(1)
                self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return torch.tanh(y - self.mean)


class TorchEncoder(nn.Module):
    """`nn.TransformerEncoder` with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 24, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Encode (batch, length, width); `padding` is True where a token does not count."""
        out: torch.Tensor = self.encoder(x, src_key_padding_mask=padding)
        return out


class Recurrent(nn.Module):
    """A GRU cell rolled out by a Python loop, and an autocast block that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the last state."""
        state = x.new_zeros(x.shape[0], WIDTH)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state


def _nested(generator: torch.Generator) -> Inputs:
    x, shift, scale = (torch.randn(s, generator=generator) for s in ((4, WIDTH), (WIDTH,), (1,)))
    return Inputs(({"x": x, "shift": shift},), {"scale": scale})


def mask(batch: int = 2, length: int = 8) -> torch.Tensor:
    """Return a padding mask: the first sample is full, the second is not."""
    lengths = torch.tensor([[length], [length - 3]][:batch])
    return (torch.arange(length) < lengths).long()


MODELS = (
    Covered(
        name="dict_output",
        family="constructs",
        make=DictModel,
        inputs=lambda g: Inputs((floats(4, 8)(g),), {"scale": floats(8)(g)}),
    ),
    Covered(name="dataclass_output", family="constructs", make=DataclassOutput, inputs=_nested),
    Covered(
        name="graph_break",
        family="constructs",
        make=GraphBreak,
        inputs=positional(floats(4, 8)),
    ),
    Covered(
        name="tied_and_masked",
        family="constructs",
        make=TiedMasked,
        inputs=keywords(ids=tokens(), mask=lambda _: mask()),
    ),
    Covered(
        name="changes_in_place",
        family="constructs",
        make=ChangesInPlace,
        inputs=positional(floats(4, WIDTH)),
    ),
    Covered(
        name="changes_buffers",
        family="constructs",
        make=ChangesBuffers,
        inputs=positional(floats(4, WIDTH)),
    ),
    Covered(
        name="torch_encoder",
        family="constructs",
        make=TorchEncoder,
        inputs=positional(floats(2, 8, WIDTH), lambda _: mask() == 0),
    ),
    Covered(
        name="gru_cell",
        family="constructs",
        make=Recurrent,
        inputs=positional(floats(2, 4, WIDTH)),
    ),
)
"""Every model of this module."""
