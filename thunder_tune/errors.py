"""Errors that thunder-tune raises, named by what the caller can do about them.

Every message is one line: what was wrong, which value, what is allowed, what to do. A candidate
that fails is not an error: it is a `thunder_tune.values.trial.Failure` inside a result.
"""

from __future__ import annotations

__all__ = [
    "ConflictError",
    "InputError",
    "MeasurementError",
    "MissingDependency",
    "ModelError",
    "NotFoundError",
    "RecipeError",
    "StorageError",
    "ThunderTuneError",
    "WorkerError",
    "headline",
]


class ThunderTuneError(Exception):
    """Base of every error of thunder-tune. `exit_status` is the command line's answer to it."""

    exit_status = 1


class InputError(ThunderTuneError, ValueError):
    """A word, number or file that the user gave is not allowed; the user can correct it."""

    exit_status = 2


class RecipeError(InputError):
    """A recipe is missing, damaged, of an unknown version, or (strict) does not fit."""


class NotFoundError(InputError, LookupError):
    """A named model, study, trial or recipe does not exist."""


class ConflictError(InputError):
    """The name exists already with other settings."""


class StorageError(ThunderTuneError):
    """The database cannot be opened, read or written, or has another schema."""

    exit_status = 2


class MissingDependency(ThunderTuneError, ImportError):
    """An optional package is needed; the message names the extra that brings it."""

    exit_status = 2


class ModelError(ThunderTuneError):
    """The model or its factory raised, or gives nothing that could be judged."""


class MeasurementError(ThunderTuneError):
    """Nothing could be measured."""


class WorkerError(ThunderTuneError):
    """A worker could not be started or was lost for good."""


def headline(text: str, at_most: int = 400) -> str:
    """Return the first line of an error's text, with what follows where that ends in a colon.

    Args:
        text: Perhaps of many lines; "Error(s) in loading state_dict:" alone would say nothing.
        at_most: Characters to keep.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    head = ""
    for line in lines:
        head = f"{head} {line}".strip()
        if not line.endswith(":"):
            break
    return head[:at_most]
