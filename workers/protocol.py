"""Messages between a worker and its child process: length-prefixed JSON over a socket.

A frame is four bytes, the length of what follows as a big-endian number, and that many bytes of
UTF-8 JSON. Nothing is pickled, so nothing that a child sends can run code in its parent.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from thunder_tune.errors import InputError, WorkerError
from thunder_tune.values.codec import from_data, from_json, to_data, to_json

T = TypeVar("T")

MAX_FRAME_BYTES = 64 * 2**20
"""Far above the largest program's description (a few MiB): a larger length is a damaged frame."""

_HEADER = struct.Struct(">I")
_CHUNK_BYTES = 2**20

MessageKind = Literal[
    "identify", "describe", "measure", "screen", "compare", "progress", "result", "failure"
]


class ProtocolError(WorkerError):
    """A frame is damaged, too large, or ends in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One frame: a job for the child, or its progress and its final answer.

    Attributes:
        kind: What `body` is: a job ("identify", "describe", "measure", "screen", "compare"), a
            `Progress`, a result (the value that the job's kind asks for) or a `Failure`.
        body: JSON of that value.
        deadline: Of a comparison: reading of the machine's monotonic clock, seconds, after which
            the child begins nothing new.
        spent: Of an answer: the child's state can no longer be trusted, it wants replacing.
    """

    kind: MessageKind
    body: Mapping[str, Any] = field(default_factory=dict)
    deadline: float | None = None
    spent: bool = False

    @classmethod
    def of(
        cls,
        kind: MessageKind,
        value: object,
        *,
        deadline: float | None = None,
        spent: bool = False,
    ) -> Message:
        """Wrap a value."""
        return cls(kind=kind, body=to_data(value), deadline=deadline, spent=spent)

    def read(self, kind: type[T]) -> T:
        """Return the value inside.

        Raises:
            ProtocolError: The body is not a valid `kind`.
        """
        try:
            return from_data(kind, self.body)
        except InputError as error:
            raise ProtocolError(f"damaged message {self.kind!r}: {error}") from error


def encode(message: Message) -> bytes:
    """Return the frame of a message.

    Raises:
        ProtocolError: It is larger than `MAX_FRAME_BYTES`, or holds NaN or an infinity.
    """
    try:
        payload = to_json(message).encode()
    except ValueError as error:
        raise ProtocolError(f"message {message.kind!r} has no JSON: {error}") from error
    if len(payload) > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"message {message.kind!r} of {len(payload)} bytes: at most {MAX_FRAME_BYTES}"
        )
    return _HEADER.pack(len(payload)) + payload


class FrameReader:
    """Cuts a stream of bytes, as it comes in, into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_inside_frame(self) -> bool:
        """Whether the stream so far ends in the middle of a frame."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add bytes that came in."""
        self._buffer += data

    def next(self) -> Message | None:
        """Return the next complete message, or None where more bytes are needed.

        Raises:
            ProtocolError: The frame is too large or is not a message.
        """
        if len(self._buffer) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"frame of {length} bytes: at most {MAX_FRAME_BYTES}")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        try:
            return from_json(Message, payload)
        except (InputError, UnicodeDecodeError) as error:
            raise ProtocolError(f"damaged frame: {error}") from error


class Channel:
    """One end of the socket; not for several threads at once."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._frames = FrameReader()
        self._poll = select.poll()  # select() cannot watch descriptors above 1023
        self._poll.register(end, select.POLLIN)

    def send(self, message: Message, *, timeout_s: float | None = None) -> None:
        """Send one message.

        Raises:
            ProtocolError: It cannot be encoded.
            OSError: The other end is gone, or (TimeoutError) does not read within `timeout_s`.
        """
        self._socket.settimeout(timeout_s)
        self._socket.sendall(encode(message))

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message, or None where no complete one came within `timeout_s`.

        Raises:
            EOFError: The other end closed, between two messages.
            ProtocolError: The other end closed inside a frame, or sent a damaged one.
        """
        while (message := self._frames.next()) is None:
            if timeout_s is None:
                self._poll.poll()
            elif not self._poll.poll(max(timeout_s, 0.0) * 1000.0):
                return None
            self._frames.feed(self._read())
            if timeout_s is not None:  # one wait a call: a slow sender must not outlast it
                return self._frames.next()
        return message

    def _read(self) -> bytes:
        """Return the bytes that are there, at least one."""
        try:
            data = self._socket.recv(_CHUNK_BYTES)
        except ConnectionResetError:
            data = b""
        if data:
            return data
        if self._frames.is_inside_frame:
            raise ProtocolError("the stream ends inside a frame")
        raise EOFError("the other end closed the channel")

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
