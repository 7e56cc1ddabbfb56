"""Small models with every kind of op that a program may hold, for tests on a CPU."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Pre-norm transformer block with torch's own attention module."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        y = self.norm1(x)
        y, _ = self.attention(y, y, y, need_weights=False)
        x = x + y
        out: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class TinyTransformer(nn.Module):
    """Blocks of equal shape and a head: classes that occur several times."""

    def __init__(self, width: int = 16, heads: int = 2, depth: int = 2, classes: int = 5) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to (batch, classes)."""
        out: torch.Tensor = self.head(self.blocks(x).mean(1))
        return out


class TinyConvNet(nn.Module):
    """Convolution, batch norm, in-place activation, residual, pooling."""

    def __init__(self, channels: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.1, inplace=True)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (batch, 3, h, w) to (batch, classes)."""
        x = self.act(self.norm(self.stem(x)))
        x = self.act(self.conv(x) + x)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        out: torch.Tensor = self.head(self.drop(x))
        return out


class DictModel(nn.Module):
    """Keyword inputs, a dictionary with a number in it as output."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> Mapping[str, object]:
        """Return {"y": tensor, "steps": 2}."""
        return {"y": self.second(F.silu(self.first(x)) * scale), "steps": 2}


class GraphBreak(nn.Module):
    """Reads a value on the host between two layers: several graphs."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, width) to the same shape; the branch depends on a value."""
        x = torch.tanh(self.first(x))
        if x.sum().item() > 1e9:
            x = x * 2
        out: torch.Tensor = self.second(x)
        return out
