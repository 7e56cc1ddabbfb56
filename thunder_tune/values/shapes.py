"""The input shapes of a run over several: `--shapes 1,8,64`, and the names of their studies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from thunder_tune.errors import InputError

_SHAPE = re.compile(r"([1-9]\d*)(?:x([1-9]\d*))?")


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A batch size, with a sequence length where that varies too; written "8" or "8x512".

    Attributes:
        batch_size: Samples per call.
        seq_len: Tokens per sample, or 0 where it is not said.
    """

    batch_size: int
    seq_len: int = 0

    def __str__(self) -> str:
        """Write it as it is read."""
        return f"{self.batch_size}x{self.seq_len}" if self.seq_len else str(self.batch_size)


def parse_shape(text: str) -> Shape:
    """Read one shape.

    Raises:
        InputError: It is written in another way.
    """
    found = _SHAPE.fullmatch(text.strip())
    if found is None:
        raise InputError(
            f"shape {text!r}: write a batch size of at least 1, as 8, or with a sequence length, "
            "as 8x512"
        )
    return Shape(int(found[1]), int(found[2] or 0))


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Read shapes with commas between them, and return them from small to large.

    Raises:
        InputError: One is written in another way, or only some have a sequence length.
    """
    shapes = sorted({parse_shape(part) for part in text.split(",")})
    if len({shape.seq_len == 0 for shape in shapes}) > 1:
        raise InputError(
            f"shapes {text!r}: give all of them a sequence length, as 1x128,8x512, or none"
        )
    return tuple(shapes)


def study_of_shape(name: str, shape: Shape) -> str:
    """Return the name of the study of one shape of a run: "NAME@8"."""
    return f"{name}@{shape}"


def studies_by_shape(name: str, studies: Iterable[str]) -> tuple[str, ...]:
    """Find the studies of a run over several shapes, from small shapes to large.

    Args:
        name: Of the run.
        studies: Names of all studies there are.
    """
    found = []
    for study in studies:
        owner, _, shape = study.rpartition("@")
        if owner == name and _SHAPE.fullmatch(shape):
            found.append((parse_shape(shape), study))
    return tuple(study for _, study in sorted(found))


def run_of_study(study: str) -> str:
    """Return the name of the run over several shapes that a study is of, else its own name."""
    owner, _, shape = study.rpartition("@")
    return owner if owner and _SHAPE.fullmatch(shape) else study
