"""Capture front ends, and the captured program: ops, cells, classes, structural hashes.

`capturing.capture` is the way in. `dynamo` replays Dynamo's graph (`replay`, `opened`, `opaque`);
`jit` uses Thunder's own tracer; `order` puts together what can be fused; `structure` turns initial
traces into `values.program.Program`.
"""

from thunder_tune.program.capturing import capture
from thunder_tune.program.frontend import (
    Capture,
    CapturedGraph,
    CaptureError,
    model_key,
    signature_of,
)

__all__ = ["Capture", "CaptureError", "CapturedGraph", "capture", "model_key", "signature_of"]
