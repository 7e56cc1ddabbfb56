"""Programs of which is known by how much one is faster: all they do is to move so many bytes.

`MovingSession` measures a real model in a real child process. A candidate's assignment says which
share of `BYTES` its calls move (`MOVED`); this happens outside of all that is captured, and the
result is the same whatever the share. Equal shares are equal programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from thunder_tune.testing.faulty_models import Good
from thunder_tune.values.comparison import Contender, Round
from thunder_tune.values.job import CompareJob, Progress
from thunder_tune.workers.session import TrialSession
from thunder_tune.workers.trial_process import Tell

MOVING_SESSION = "thunder_tune.testing.moved_bytes:MovingSession"
MODEL = "thunder_tune.testing.moved_bytes:Moving"
INPUTS = "thunder_tune.testing.faulty_models:make_inputs"
MOVED = "moved"
BYTES = {"cpu": 2**24, "cuda": 2**29}
"""Moved by a whole call: beyond caches, and for long against what a call costs beside."""

_share: list[float] = [1.0]
_memory: dict[torch.device, tuple[Tensor, Tensor]] = {}


class Moving(Good):
    """A small layer, then bytes are moved."""

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer and move the bytes of the moment."""
        answer: Tensor = torch.relu(self.linear(x))
        _move(answer.device)
        return answer


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no type for it
def _move(device: torch.device) -> None:
    if device not in _memory:
        size = BYTES[device.type]
        _memory[device] = tuple(  # type: ignore[assignment]  # two
            torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)
        )
    source, destination = _memory[device]
    count = int(len(source) * _share[0])
    destination[:count].copy_(source[:count])


class MovingSession(TrialSession):
    """Moves as many bytes as the contender at work names."""

    def compare(self, job: CompareJob, tell: Tell, deadline: float) -> Round:
        """Run a round of contenders that move different shares."""
        shares = {c.name: float(c.assignment.get(MOVED, "1")) for c in job.contenders}

        def told(progress: Progress) -> None:
            if progress.subject:
                _share[0] = shares[progress.subject]
            tell(progress)

        plain = tuple(replace(c, assignment=_without_share(c)) for c in job.contenders)
        return super().compare(replace(job, contenders=plain), told, deadline)


def _without_share(contender: Contender) -> Mapping[str, str]:
    return {name: choice for name, choice in contender.assignment.items() if name != MOVED}
