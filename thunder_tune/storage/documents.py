"""What lies in a column: JSON documents of values, and packed repeats."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar

from thunder_tune.errors import InputError, StorageError
from thunder_tune.values.codec import from_data

T = TypeVar("T")

FLOAT32, FLOAT64 = "f4", "f8"
_FORMATS = {FLOAT32: ("f", 4), FLOAT64: ("d", 8)}


def encode(data: Any) -> str:  # noqa: ANN401 - a JSON tree
    """Write a JSON tree as one line of JSON.

    JSON has no infinity and no NaN, but a rejected candidate's error may be either: they become
    the strings that the codec reads back as floats.
    """
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)


def decode(text: str) -> Any:  # noqa: ANN401
    """Read back what `encode` wrote.

    Raises:
        StorageError: The text is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise StorageError(f"a stored document is damaged: not JSON ({error})") from error


def value(kind: type[T], data: Any) -> T:  # noqa: ANN401
    """Build a value from a stored JSON tree.

    Raises:
        StorageError: The tree does not fit `kind`: damaged, or written by another version.
    """
    try:
        return from_data(kind, data)
    except InputError as error:
        raise StorageError(f"a stored document is damaged: {error}") from error


def compress(data: Any) -> bytes:  # noqa: ANN401
    """Write a JSON tree as zlib-compressed JSON."""
    return zlib.compress(encode(data).encode())


def decompress(blob: bytes) -> Any:  # noqa: ANN401
    """Read back what `compress` wrote; errors as in `decode`."""
    return decode(_inflate(blob).decode())


def pack(samples: Sequence[float]) -> tuple[str, bytes]:
    """Compress repeats without loss.

    Args:
        samples: In run order.

    Returns:
        The encoding and zlib of the little-endian array: "f4" where every sample is a 32-bit
        float (device events give those), "f8" otherwise.
    """
    wide = struct.pack(f"<{len(samples)}d", *samples)
    try:
        narrow = struct.pack(f"<{len(samples)}f", *samples)
    except OverflowError:
        return FLOAT64, zlib.compress(wide)
    again = struct.unpack(f"<{len(samples)}f", narrow)
    if struct.pack(f"<{len(samples)}d", *again) == wide:
        return FLOAT32, zlib.compress(narrow)
    return FLOAT64, zlib.compress(wide)


def unpack(encoding: str, blob: bytes) -> tuple[float, ...]:
    """Read back what `pack` wrote.

    Raises:
        StorageError: The bytes are damaged or the encoding is unknown.
    """
    if encoding not in _FORMATS:
        raise StorageError(f"a stored measurement is damaged: unknown encoding {encoding!r}")
    letter, size = _FORMATS[encoding]
    raw = _inflate(blob)
    if len(raw) % size:
        raise StorageError(f"a stored measurement is damaged: {len(raw)} bytes of {encoding}")
    return struct.unpack(f"<{len(raw) // size}{letter}", raw)


def _inflate(blob: bytes) -> bytes:
    try:
        return zlib.decompress(blob)
    except zlib.error as error:
        raise StorageError(f"a stored document is damaged: {error}") from error


def _finite(data: Any) -> Any:  # noqa: ANN401
    if isinstance(data, dict):
        return {key: _finite(item) for key, item in data.items()}
    if isinstance(data, list):
        return [_finite(item) for item in data]
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    return data
