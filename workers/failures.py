"""What an exception of a model or a candidate means: its kind, in one line."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path

import thunder_tune
from thunder_tune.errors import ThunderTuneError, headline
from thunder_tune.values.trial import Failure, FailureKind, Phase

_KIND_OF_PHASE: Mapping[Phase, FailureKind] = {
    "start": "crash",
    "load": "model",
    "capture": "capture",
    "compile": "compile",
    "check": "run",
    "time": "run",
}

_MEMORY_TYPES = ("OutOfMemoryError", "MemoryError")
_MEMORY_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cannot allocate memory",
)
# After these every further call into CUDA fails the same way: only a new process helps.
_STICKY_TEXTS = (
    "illegal memory access",
    "device-side assert triggered",  # every CUDA error's text ends with "Device-side assertions"
    "misaligned address",
    "unspecified launch failure",
    "illegal instruction",
    "illegal address",
    "hardware stack error",
    "invalid program counter",
    "uncorrectable ecc error",
    "launch timed out",
    "cuda_error_illegal_address",
    "cuda_error_launch_failed",
)
_OTHER_DEVICE_TEXT = "expected all tensors to be on the same device"
_USER_CODE = "from user code:"  # Dynamo's messages name the model's own lines after it
_OUR_FOLDERS = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(folder).resolve()) for folder in thunder_tune.__path__}
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_MOST_CHARACTERS = 100_000
"""Of an exception's text that are looked at."""
_FOLDERS = re.compile(r"""(?<![\w.])/(?:[^\s/'"`,;:()\[\]<>]+/)+""")
_NAMES = re.compile(
    r"""
    0x[0-9a-fA-F]+  # an address
    | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b  # a UUID
    | \btmp[a-z0-9_]{8}\b  # of the tempfile module
    | \b(?=[a-z]*\d)[a-z0-9]{12,}\b  # a hash
    | (?:(?<![\w.)\]])-)?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:\s*(?:[KMGT]i?B|bytes?)\b)?
    """,
    re.VERBOSE,
)


FAULTS = (Exception, SystemExit)
"""What the code of a model or a compiler may raise; none of it may end the child."""


class ModelFault(Exception):
    """The model itself is at fault, whatever the candidate; holds the failure that says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def classify(
    error: BaseException,
    phase: Phase,
    *,
    kind: FailureKind | None = None,
    of_model: bool = False,
) -> Failure:
    """Turn an exception into a failure.

    Args:
        error: As caught, with its traceback.
        phase: When it was raised.
        kind: Kind unless the error itself says otherwise; the phase's own by default.
        of_model: Whether the user's model ran as it is, so that an ordinary fault is its own.
    """
    if isinstance(error, ModelFault):
        return error.failure
    text = _text(error)
    line = headline(text)
    place = _place(error, text)
    found = _own_kind(error, text.lower())
    if isinstance(error, ThunderTuneError):  # a whole sentence, with its place where it has one
        message, place = line, ""
    else:
        message = ": ".join(filter(None, (type(error).__name__, line)))
    if of_model and _OTHER_DEVICE_TEXT in text.lower():
        message = f"the inputs are not on the model's device: {message}"
    return Failure(
        kind=found or kind or ("model" if of_model else _KIND_OF_PHASE[phase]),
        phase=phase,
        message=f"{message} ({place})" if place else message,
        group=group_of(message),
    )


def is_sticky(error: BaseException) -> bool:
    """Whether the process's CUDA context is lost with this error."""
    text = _text(error).lower()
    return any(sticky in text for sticky in _STICKY_TEXTS)


def group_of(message: str) -> str:
    """Return what failures of one cause share: the message without what differs by chance.

    That is numbers with their units, addresses, hashes, names of temporary files, and the folders
    of paths.
    """
    return _NAMES.sub("N", _FOLDERS.sub("", message))


def printable(text: str) -> str:
    """Return a text that any database, terminal and page can show: odd characters as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c.isspace() else ascii(c)[1:-1] for c in text)


def _text(error: BaseException) -> str:
    """Return an exception's text; its class may be a candidate's own, and faulty too."""
    try:
        return printable(str(error)[:_MOST_CHARACTERS])
    except Exception as another:
        return f"(its text could not be had: {type(another).__name__})"


def _own_kind(error: BaseException, text: str) -> FailureKind | None:
    """Return the kind that the error itself tells, whatever was going on."""
    if is_sticky(error):
        return "crash"
    names = {base.__name__ for base in type(error).__mro__}
    if names.intersection(_MEMORY_TYPES) or any(words in text for words in _MEMORY_TEXTS):
        return "out-of-memory"
    return None


def _place(error: BaseException, text: str) -> str:
    """Return "file.py:line" of the code that people can change, else of the innermost frame."""
    if frames := _FRAME.findall(text.partition(_USER_CODE)[2]):
        path, line = frames[-1]
        return f"{Path(path).name}:{line}"
    stack = traceback.extract_tb(error.__traceback__)
    if not stack:
        return ""
    theirs = [frame for frame in stack if not _is_ours(frame.filename)]
    frame = theirs[-1] if theirs else stack[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _is_ours(path: str) -> bool:
    """Whether a file belongs to Python, an installed package or thunder-tune."""
    return path.startswith("<") or any(path.startswith(folder) for folder in _OUR_FOLDERS)
