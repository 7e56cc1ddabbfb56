"""Where a model comes from, as data that a worker on another machine can follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from thunder_tune.errors import InputError

DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("cpu", "cuda")

Mode = Literal["inference", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model, its inputs and how it is run; never a pickle of a live model.

    Attributes:
        name: Built-in model ("vit_b_16") or the user's factory ("package.module:factory").
        inputs: The user's input factory ("package.module:make_inputs"), or None: made from the
            model's own input specification.
        device: "cpu" or "cuda"; which card is the worker's business.
        dtype: Type of floating-point parameters and inputs.
        batch_size: Samples per call, at least 1.
        seq_len: Tokens per sample for text models, at least 1; ignored by others.
        mode: "inference" (no gradients) or "train" (forward and backward).
        seed: Seed of random weights and inputs.
        search_path: Folders put in front of sys.path before a user's factory is imported.
    """

    name: str
    inputs: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    batch_size: int = 1
    seq_len: int = 128
    mode: Mode = "inference"
    seed: int = 0
    search_path: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that no worker could run."""
        for label, value, allowed in (
            ("dtype", self.dtype, DTYPES),
            ("device", self.device, DEVICES),
            ("mode", self.mode, ("inference", "train")),
        ):
            if value not in allowed:
                raise InputError(f"unknown {label} {value!r}: use one of {', '.join(allowed)}")
        for label, number in (("batch size", self.batch_size), ("sequence length", self.seq_len)):
            if number < 1:
                raise InputError(f"{label} {number}: must be at least 1")

    @property
    def is_user_factory(self) -> bool:
        """Whether `name` is a factory reference rather than a built-in model."""
        return ":" in self.name
