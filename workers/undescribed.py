"""The description of a model of which nothing is known but why."""

from __future__ import annotations

from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import Description
from thunder_tune.values.program import Program
from thunder_tune.values.space import SearchSpace
from thunder_tune.values.trial import Failure

NO_PROGRAM = Program(front_end="none", hash="", loose_hash="", ops=(), cells=(), classes=())
"""The program of a model that was not, or not yet, captured."""


def undescribed(failure: Failure | None) -> Description:
    """Return a description with a failure alone."""
    return Description(
        program=NO_PROGRAM,
        space=SearchSpace(dimensions=()),
        fingerprint=Fingerprint(device="", capability=""),
        capture_s=0.0,
        signature="",
        failure=failure,
    )
