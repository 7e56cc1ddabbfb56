"""Two small models of our own, quick on a CPU."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from thunder_tune.models.family import LoadedModel, ModelInfo
from thunder_tune.models.inputs import Inputs, scale_of
from thunder_tune.models.tokens import token_ids
from thunder_tune.models.weights import seeded
from thunder_tune.values.source import ModelSource

FEATURES = 256
VOCABULARY = 512


class Mlp(nn.Module):
    """Three linear layers with norm and GELU between them: (batch, 256) to (batch, 10)."""

    def __init__(self, hidden: int = 512, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.second = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Classify rows of features."""
        hidden = self.norm(functional.gelu(self.first(features)))
        hidden = hidden + functional.gelu(self.second(hidden))
        logits: torch.Tensor = self.head(hidden)
        return logits


class Block(nn.Module):
    """A GPT block: causal attention and a feed-forward part, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Mix tokens: x of shape (batch, tokens, width), each token sees the ones before it."""
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: torch.Tensor = self.proj(y.transpose(1, 2).reshape(batch, tokens, width))
        return mixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, of the shape of `x`."""
        x = x + self.attend(self.norm_1(x))
        x = x + self.down(functional.gelu(self.up(self.norm_2(x))))
        return x


class NanoGpt(nn.Module):
    """A GPT of four layers: token ids (batch, tokens) to logits (batch, tokens, 512)."""

    def __init__(self, tokens: int, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY, width)
        self.position_embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Predict the token after each one."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.token_embedding(ids) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def infos() -> tuple[ModelInfo, ...]:
    """List the two models."""
    return (
        ModelInfo(name="mlp", family="small", description=f"rows of {FEATURES} features"),
        ModelInfo(
            name="nanogpt", family="small", description=f"token ids below {VOCABULARY}, 4 layers"
        ),
    )


def make(source: ModelSource) -> LoadedModel:
    """Build a model on the CPU in float32."""
    with seeded(source.seed):
        model: nn.Module = Mlp() if source.name == "mlp" else NanoGpt(source.seq_len)
    dtype = getattr(torch, source.dtype)

    def features(seed: int) -> Inputs:
        generator = torch.Generator(source.device).manual_seed(seed)
        shape = (source.batch_size, FEATURES)
        rows = torch.randn(shape, generator=generator, device=source.device, dtype=dtype)
        return Inputs((rows * scale_of(seed),))

    def tokens(seed: int) -> Inputs:
        return Inputs((token_ids(source, VOCABULARY, seed),))

    return LoadedModel(model, features if source.name == "mlp" else tokens)
