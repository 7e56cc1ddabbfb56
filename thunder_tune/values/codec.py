"""JSON of the values: checked decoding, canonical encoding, digests."""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from thunder_tune.errors import InputError

T = TypeVar("T")


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - any dataclass or typing form
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def to_data(value: Any) -> Any:  # noqa: ANN401 - the JSON tree of any value
    """Turn a value into dictionaries, lists, strings and numbers."""
    return _adapter(type(value)).dump_python(value, mode="json")


def to_json(value: Any) -> str:  # noqa: ANN401
    """Encode a value as one line of JSON."""
    return json.dumps(to_data(value), separators=(",", ":"), allow_nan=False)


def from_data(kind: type[T], data: Any) -> T:  # noqa: ANN401
    """Decode the JSON tree of a value.

    Args:
        kind: Dataclass to build.
        data: What `to_data` returned, perhaps read back from a file.

    Raises:
        InputError: The data does not have the fields or types of `kind`.
    """
    try:
        result: T = _adapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise InputError(
            f"not a valid {kind.__name__}: {where}: {first['msg']} "
            f"(got {str(first.get('input'))[:60]!r})"
        ) from error
    return result


def from_json(kind: type[T], text: str | bytes) -> T:
    """Decode one JSON text as `kind`; errors as in `from_data`."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a valid {kind.__name__}: not JSON ({error})") from error
    return from_data(kind, data)


def json_schema(kind: type[Any]) -> dict[str, Any]:
    """Return the JSON schema of a value's class."""
    return _adapter(kind).json_schema()


def canonical(data: Any) -> str:  # noqa: ANN401
    """Write a JSON tree so that equal trees give equal text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(data: Any) -> str:  # noqa: ANN401
    """Return the SHA-256 of a JSON tree's canonical text, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()
