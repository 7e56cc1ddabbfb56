"""Small models that do to a worker what users' models do; factories for `--model`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

WIDTH = 16
REFERENCE = "thunder_tune.testing.faulty_models:"
"""Begins the name of a factory of this module."""
ORDER_VARIABLE = "THUNDER_TUNE_TEST_ORDER"
"""Environment variable with the path of a file that says what `Obeys` does."""
REST_S = 0.02
"""How long `Obeys` rests."""


def make_inputs(batch_size: int = 2) -> Tensor:
    """Return random inputs for every model here."""
    return torch.randn(batch_size, WIDTH)


def make_elsewhere(batch_size: int = 2) -> Tensor:
    """Return inputs on a device that no model here is on."""
    return torch.empty(batch_size, WIDTH, device="meta")


class Good(nn.Module):
    """A linear layer and an activation; the others misbehave before it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer."""
        self.misbehave()
        return torch.relu(self.linear(x))

    def misbehave(self) -> None:
        """Do nothing."""


class Raises(Good):
    """Raises in every call."""

    def misbehave(self) -> None:
        """Raise."""
        raise ValueError("planted: 7 heads do not divide 16")


class Exits(Good):
    """Ends the interpreter in every call."""

    def misbehave(self) -> None:
        """Exit as a script would."""
        raise SystemExit("planted exit")


class Killed(Good):
    """Is killed in every call."""

    def misbehave(self) -> None:
        """Send SIGKILL to this process."""
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Good):
    """Never returns."""

    def misbehave(self) -> None:
        """Wait for ever."""
        threading.Event().wait()


class OutOfMemory(Good):
    """Asks for more memory than any machine has."""

    def misbehave(self) -> None:
        """Allocate 4 EiB."""
        torch.empty(2**60, dtype=torch.float32)


class Uncaptured(Good):
    """Writes through windows on its activations, where no front end can follow."""

    def forward(self, x: Tensor) -> Tensor:
        """Double every window."""
        result: Tensor = self.linear(x)
        result.unfold(1, 2, 2).mul_(2)
        return result


class Obeys(Good):
    """Is captured and judged like any other; each call may be told to do something in Python."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no type for it
    def misbehave(self) -> None:
        """Read the order of the moment and carry it out."""
        order = Path(os.environ[ORDER_VARIABLE]).read_text()
        device = self.linear.weight.device
        if order == "rest":
            time.sleep(REST_S)
        if order == "hoard":
            _hoard(device)
        if order == "spin":
            _spin(device)


class Plants(Good):
    """Is captured and judged like any other; then its answers may be told to be faulty."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer and plant the fault of the moment."""
        answer: Tensor = self.plant(_cancelling(self.linear(x)), x)
        return answer

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as above
    def plant(self, out: Tensor, x: Tensor) -> Tensor:
        """Return an answer with the fault that was ordered, else as it is."""
        order = Path(os.environ[ORDER_VARIABLE]).read_text()
        plants: dict[str, Callable[[], Tensor]] = {
            "never written": lambda: torch.empty_like(out),
            "last tile skipped": lambda: _skipped(out),
            "last tile of the sum skipped": lambda: self._partial(x),
            "float16 overflow": lambda: ((out.half() * 1e6) / 1e6).to(out.dtype),
            "constant": lambda: torch.full_like(out, 0.1),
            "right on one input": lambda: self._remembered(out),
            "nearer to the truth": lambda: self._exact(x),
        }
        return plants[order]() if order else out

    def _partial(self, x: Tensor) -> Tensor:
        out = nn.functional.linear(x[:, :-2], self.linear.weight[:, :-2], self.linear.bias)
        return _cancelling(out)

    def _remembered(self, out: Tensor) -> Tensor:
        if self._kept is None:
            self._kept = out.clone()
        return self._kept.clone()

    def _exact(self, x: Tensor) -> Tensor:
        weight, bias = self.linear.weight.double(), self.linear.bias.double()
        out = nn.functional.linear(x.double(), weight, bias)
        return _cancelling(out).to(x.dtype)


def _cancelling(x: Tensor) -> Tensor:
    """Return a small difference of large numbers: step by step it loses digits."""
    return x * 1.7 - x * 1.6


def _skipped(out: Tensor) -> Tensor:
    """Leave the last elements of an answer at zero."""
    out = out.clone()
    out.view(-1)[-4:] = 0.0
    return out


def _hoard(device: torch.device) -> None:
    """Allocate until there is no memory left."""
    if device.type != "cuda":
        torch.empty(2**60)  # to really fill the host's memory would end other processes
    hoard = []
    while True:
        hoard.append(torch.empty(2**28, device=device))


def _spin(device: torch.device) -> None:
    """Never return, and on a GPU keep it busy for ever."""
    if device.type != "cuda":
        threading.Event().wait()
    torch.cuda._sleep(2**60)  # type: ignore[no-untyped-call]  # nor for this


class Constant(Good):
    """Returns the same whatever the input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ones."""
        return torch.ones_like(x)


class NotFinite(Good):
    """Returns NaN."""

    def forward(self, x: Tensor) -> Tensor:
        """Return NaN."""
        return torch.full_like(x, float("nan"))


class NoTensor(Good):
    """Returns a text."""

    def forward(self, x: Tensor) -> str:  # type: ignore[override]  # the fault
        """Return no tensor."""
        return "done"


def broken_factory() -> nn.Module:
    """Raise instead of making a model."""
    raise FileNotFoundError("planted: no checkpoint at weights.pt")
