"""One step of generation: a causal model reads one token for each sample beside cached ones.

Imported only where transformers is installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, StaticLayer


class DecodeStep(nn.Module):
    """A Hugging Face causal model with a full cache of its own, for steps of one length.

    Each call writes the new token's keys and values to the cache's last place and attends to all
    of it; the place does not move on, so that equal calls give equal results.

    Args:
        model: A causal model; its `config` gives the shapes of the cache.
        batch_size: Samples.
        length: Tokens in the cache, the new one among them.
    """

    def __init__(self, model: nn.Module, *, batch_size: int, length: int) -> None:
        super().__init__()
        self.model = model
        config: Any = model.config
        shape = (batch_size, config.num_key_value_heads, length, config.head_dim)
        # A norm, then weights of that deviation: what the projections make of a token.
        deviation = config.initializer_range * config.hidden_size**0.5
        self._depth = int(config.num_hidden_layers)
        self.register_buffer("place", torch.tensor(length - 1))
        for layer in range(self._depth):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}_{layer}", torch.randn(shape) * deviation)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token.

        Args:
            input_ids: (batch size, 1), int64.

        Returns:
            (batch size, 1, vocabulary).
        """
        place = self.get_buffer("place")
        layers: list[Any] = [
            _StandingLayer(self.get_buffer(f"keys_{i}"), self.get_buffer(f"values_{i}"), place)
            for i in range(self._depth)
        ]
        logits: torch.Tensor = self.model(
            input_ids=input_ids, past_key_values=Cache(layers=layers)
        ).logits
        return logits


class _StandingLayer(StaticLayer):  # type: ignore[no-untyped-call]  # of transformers' base
    """A layer's cache in the module's buffers; its place stays where it is."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, place: torch.Tensor) -> None:
        super().__init__(max_cache_len=keys.shape[-2])
        self.keys, self.values, self._place = keys, values, place
        self.cumulative_length: Any = place
        self.is_initialized = True

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None
        assert self.values is not None
        at = self._place.view(1)
        self.keys.index_copy_(2, at, key_states)
        self.values.index_copy_(2, at, value_states)
        return self.keys, self.values
