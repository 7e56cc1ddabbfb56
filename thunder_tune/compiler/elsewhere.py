"""A model as it would be on a device that is not here: fake tensors, which compute nothing.

Capturing such a model gives the same program, hashes included, as capturing it on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_tune.program import Capture, capture

Fake = Callable[[torch.Tensor], torch.Tensor]


def capture_elsewhere(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    device: str,
    front_end: str = "auto",
    training: bool = False,
) -> Capture:
    """Capture a model as `thunder_tune.program.capture` would on a device that is not here.

    Args:
        model: On the CPU; its parameters and buffers become fake, so that it cannot run again.
        args: Positional inputs, on the CPU.
        kwargs: Keyword inputs.
        device: The device that the program is for.
        front_end: As in `capture`.
        training: As in `capture`.
    """
    mode = FakeTensorMode()

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        there = mode.from_tensor(tensor)
        with mode:
            moved: torch.Tensor = there.to(device)
        return moved

    _replace_state(model, fake)
    args, kwargs = torch.utils._pytree.tree_map_only(
        torch.Tensor, fake, (tuple(args), dict(kwargs))
    )
    with mode:
        return capture(model, args, kwargs, front_end=front_end, training=training)


def _replace_state(model: nn.Module, fake: Fake) -> None:
    """Make every parameter and buffer fake; what was shared stays shared."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(
                    fake(parameter.detach()), requires_grad=parameter.requires_grad
                )
            module._parameters[name] = made[id(parameter)]  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = made.setdefault(id(buffer), fake(buffer))
