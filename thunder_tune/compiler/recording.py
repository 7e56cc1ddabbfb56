"""Recordings: work captured once as a CUDA graph and replayed from fixed memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

_WARM_UP_CALLS = 3

Work = Callable[[], Any]


class Recording(Protocol):
    """Work that was recorded.

    Attributes:
        results: What the work returns, in memory that each replay overwrites; of no value before
            the first one.
    """

    results: Any

    def replay(self) -> None:
        """Do the work again, in the same memory."""


class Recorder(Protocol):
    """Makes recordings."""

    @property
    def is_free(self) -> bool:
        """Whether a recording can be made or replayed here and now."""

    def record(self, work: Work, written: Sequence[torch.Tensor] = ()) -> Recording:
        """Record work; its effects but those of its replays are undone.

        Args:
            work: Reads and writes fixed memory; must not synchronise with the host.
            written: Tensors that exist before the work and that it writes to.
        """


class CudaRecorder:
    """Records CUDA graphs, each in memory of its own."""

    @property
    def is_free(self) -> bool:
        """Whether no one else captures the current stream."""
        return not torch.cuda.is_current_stream_capturing()

    def record(self, work: Work, written: Sequence[torch.Tensor] = ()) -> Recording:
        """Warm up, so that everything is compiled, then capture.

        Random numbers are those that would be drawn without a recording: what the warm-up draws
        does not count, and each replay draws its own from the device's generator.
        """
        kept = [x.clone() for x in written]
        device = torch.cuda.current_device()
        devices, side = [device], _side_stream(device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.random.fork_rng(devices), torch.cuda.stream(side):
            for _ in range(_WARM_UP_CALLS):
                work()
        torch.cuda.current_stream().wait_stream(side)
        with torch.no_grad():
            for x, value in zip(written, kept, strict=True):
                x.copy_(value)
        return _CudaRecording(work, side)


@functools.cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """Return the one stream to record on: cuBLAS keeps a workspace for each that it has seen."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


class _CudaRecording:
    def __init__(self, work: Work, stream: torch.cuda.Stream) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # A gradient's capture runs in a thread of autograd's.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self.results = work()

    def replay(self) -> None:
        self._graph.replay()
