"""Apply an assignment: from a capture and a plan to a callable model.

`building.build` is the way in. A composed plan goes through `rewrites`, `tagging`, `router` (one
op to one executor), `regions` with `fusers` (several ops to one fusion), `dispatch`, `autograd`
and `cudagraphs`; a whole-program plan through `backends`. `tuned` applies a recipe to a user's
model, with `matching` to carry it to another shape.
"""

from thunder_tune.compiler.building import Built, build
from thunder_tune.compiler.viability import viability

__all__ = ["Built", "build", "viability"]
