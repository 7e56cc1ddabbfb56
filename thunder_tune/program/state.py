"""What calling a model changes, put back: a capture runs it once, for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def unchanged(model: Any) -> Iterator[None]:  # noqa: ANN401 - module or function
    """Let a model's buffers and torch's generators be after the block what they were before it.

    A batch norm's statistics, keys and values that were cached, or the masks of dropout would
    otherwise be one call ahead of the same model that was never captured. What a function or an
    object that is no module keeps for itself is not known here.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    kept = [
        (module, name, buffer, buffer.detach().clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for module, name, buffer, before in kept:
                    module._buffers[name] = buffer
                    # Its version does not tell: a batch norm writes its statistics without one.
                    if not torch.equal(buffer, before):
                        buffer.copy_(before)
