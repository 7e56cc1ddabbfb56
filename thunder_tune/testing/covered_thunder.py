"""Thunder's own workloads, and the shapes of LitGPT's models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from thunder.tests.hf_bart_self_attn import BartAttention
from thunder.tests.llama2_model import ModelArgs
from thunder.tests.llama2_model import Transformer as Llama2
from thunder.tests.llama4_moe import Config as MoeConfig
from thunder.tests.llama4_moe import Llama4MoE
from thunder.tests.nanogpt_model import GPT, MLP, Block, CausalSelfAttention, GPTConfig
from torch import nn

from thunder_tune.models.inputs import Inputs
from thunder_tune.testing.covered import Covered, floats, positional, tokens

VOCABULARY = 61
WIDTH = 32
_GPT = GPTConfig(block_size=16, vocab_size=VOCABULARY, n_layer=2, n_head=2, n_embd=WIDTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What tells LitGPT's models apart.

    Attributes:
        groups: Key and value heads.
        rotary: Share of each head's features that is rotated.
        parallel: Attention and feed-forward side by side, not one after the other.
        norm: "layer" or "rms".
        gated: Feed-forward SiLU(gate) * up rather than GELU.
        experts: Number of feed-forward experts, two for each token; 0: none.
    """

    groups: int = 4
    rotary: float = 1.0
    parallel: bool = False
    norm: str = "rms"
    gated: bool = True
    experts: int = 0
    bias: bool = False


class RmsNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        y = x.float() if x.dtype != torch.float64 else x
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (y * self.weight).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply rotary embeddings by halves, with a concatenation."""
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + rotated * sin


class Attention(nn.Module):
    """Grouped-query attention behind one packed projection."""

    def __init__(self, shape: Shape, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, shape.groups, WIDTH // heads
        self.rotated = int(shape.rotary * self.size)
        self.attn = nn.Linear(WIDTH, (heads + 2 * shape.groups) * self.size, bias=shape.bias)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=shape.bias)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Mix tokens: (batch, tokens, width) to the same shape."""
        batch, length, _ = x.shape
        per_group = self.heads // self.groups
        qkv = self.attn(x).view(batch, length, self.groups, per_group + 2, self.size)
        qkv = qkv.permute(0, 2, 3, 1, 4)
        q, k, v = qkv.split((per_group, 1, 1), dim=2)
        if self.groups != self.heads and self.groups != 1:
            k = k.expand(batch, self.groups, per_group, length, self.size)
            v = v.expand(batch, self.groups, per_group, length, self.size)
        q, k, v = (t.reshape(batch, -1, length, self.size) for t in (q, k, v))
        n = self.rotated
        q = torch.cat((rotate(q[..., :n], cos, sin), q[..., n:]), dim=-1)
        k = torch.cat((rotate(k[..., :n], cos, sin), k[..., n:]), dim=-1)
        if k.shape != q.shape:
            k, v = k.expand(q.shape), v.expand(q.shape)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.size**-0.5)
        out: torch.Tensor = self.proj(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return out


class FeedForward(nn.Module):
    """One expert, or the whole feed-forward part."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=shape.bias)
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=shape.bias) if shape.gated else None
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=shape.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map each token."""
        up = self.up(x)
        hidden = F.gelu(up) if self.gate is None else F.silu(self.gate(x)) * up
        out: torch.Tensor = self.down(hidden)
        return out


class Experts(nn.Module):
    """Mixture of experts: each token goes to the two that its router prefers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, shape.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(shape) for _ in range(shape.experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map each token; the number of tokens of an expert depends on the values."""
        batch, length, width = x.shape
        x = x.view(-1, width)
        weights, chosen = torch.topk(self.router(x), 2)
        weights = weights.softmax(dim=1)
        masks = chosen.unsqueeze(-1) == torch.arange(len(self.experts), device=x.device)
        y = torch.zeros_like(x)
        for mask, expert in zip(masks.permute(2, 0, 1), self.experts, strict=True):
            token, place = torch.where(mask)
            y[token] += weights[token, place, None] * expert(x[token])
        return y.view(batch, length, width)


class Layer(nn.Module):
    """Attention and feed-forward, one after the other or side by side."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        norm = RmsNorm if shape.norm == "rms" else nn.LayerNorm
        self.norm_1, self.norm_2 = norm(WIDTH), norm(WIDTH)
        self.attention = Attention(shape)
        self.mlp = Experts(shape) if shape.experts else FeedForward(shape)
        self.parallel = shape.parallel

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of `x`."""
        attended = self.attention(self.norm_1(x), cos, sin)
        if self.parallel:
            both: torch.Tensor = self.mlp(self.norm_2(x)) + attended + x
            return both
        x = attended + x
        out: torch.Tensor = self.mlp(self.norm_2(x)) + x
        return out


class LitGptLike(nn.Module):
    """A decoder of LitGPT's shapes: token ids (batch, tokens) to logits."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, shape: Shape, layers: int = 1, length: int = 16) -> None:
        super().__init__()
        rotated = int(shape.rotary * (WIDTH // 4))
        angles = torch.outer(
            torch.arange(length).float(), 10000.0 ** -(torch.arange(0, rotated, 2) / rotated)
        ).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(layers))
        self.norm = RmsNorm(WIDTH) if shape.norm == "rms" else nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Predict the token after each one."""
        x = self.embedding(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        out: torch.Tensor = self.head(self.norm(x))
        return out


def _moe() -> Any:  # noqa: ANN401 - thunder.tests has no types
    return Llama4MoE(MoeConfig("small", WIDTH, 48, 4, 1, torch.bfloat16, "cpu"))


def _in_bfloat16(generator: torch.Generator) -> Inputs:
    return Inputs((floats(1, 16, WIDTH)(generator).bfloat16(),))  # grouped products know no other


_IDS, _X = positional(tokens()), positional(floats(2, 8, WIDTH))
_LITGPT = {
    "litgpt_gpt_neox": Shape(rotary=0.5, parallel=True, norm="layer", gated=False, bias=True),
    "litgpt_llama2": Shape(),
    "litgpt_falcon": Shape(groups=1, parallel=True, norm="layer", gated=False),
    "litgpt_llama3_gqa": Shape(groups=2),
    "litgpt_mixtral": Shape(groups=2, experts=3),
}

MODELS = (
    Covered(
        name="nanogpt_attention",
        family="thunder",
        make=lambda: CausalSelfAttention(_GPT),
        inputs=_X,
    ),
    Covered(name="nanogpt_mlp", family="thunder", make=lambda: MLP(_GPT), inputs=_X),
    Covered(name="nanogpt_block", family="thunder", make=lambda: Block(_GPT), inputs=_X),
    Covered(
        name="nanogpt_with_loss",
        family="thunder",
        make=lambda: GPT(_GPT),
        inputs=positional(tokens(), tokens()),
    ),
    Covered(
        name="llama2",
        family="thunder",
        make=lambda: Llama2(
            ModelArgs(
                dim=WIDTH,
                n_layers=2,
                n_heads=4,
                n_kv_heads=2,
                vocab_size=VOCABULARY,
                multiple_of=8,
                max_seq_len=16,
            )
        ),
        inputs=positional(tokens(), tokens()),
    ),
    Covered(
        name="bart_attention",
        family="thunder",
        make=lambda: BartAttention(WIDTH, 4),
        inputs=positional(floats(2, 8, WIDTH), floats(2, 1, 8, 8)),
    ),
    Covered(name="llama4_moe", family="thunder", make=_moe, inputs=_in_bfloat16),
    *(
        Covered(
            name=name,
            family="thunder",
            make=lambda shape=shape: LitGptLike(shape),  # type: ignore[misc]
            inputs=_IDS,
        )
        for name, shape in _LITGPT.items()
    ),
)
"""Every model of this module."""
