"""Token ids and attention masks for text models."""

from __future__ import annotations

import torch

from thunder_tune.values.source import ModelSource


def token_ids(source: ModelSource, vocabulary: int, seed: int) -> torch.Tensor:
    """Draw token ids uniformly: int64 of shape (batch size, sequence length) on the device."""
    generator = torch.Generator(source.device).manual_seed(seed)
    shape = (source.batch_size, source.seq_len)
    return torch.randint(vocabulary, shape, generator=generator, device=source.device)


def padding_mask(source: ModelSource, seed: int) -> torch.Tensor:
    """Draw an attention mask: 1 up to a length between half and all of the sequence, then 0.

    The first sample is full. Padding is real so that a program which drops the mask is found out.
    """
    generator = torch.Generator(source.device).manual_seed(seed)
    lengths = torch.randint(
        max(1, source.seq_len // 2),
        source.seq_len + 1,
        (source.batch_size, 1),
        generator=generator,
        device=source.device,
    )
    lengths[0] = source.seq_len
    return (torch.arange(source.seq_len, device=source.device) < lengths).long()
