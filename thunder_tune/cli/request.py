"""From the flags of a command line to what a study is asked."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from platformdirs import user_data_dir

from thunder_tune.cli.durations import seconds_of
from thunder_tune.errors import InputError
from thunder_tune.values.job import Setting
from thunder_tune.values.shapes import parse_shapes, study_of_shape
from thunder_tune.values.source import DEVICES, Mode, ModelSource
from thunder_tune.values.study import StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """The flags that say what is tuned; None where the user gave none."""

    model: str | None = None
    inputs: str | None = None
    device: str | None = None
    dtype: str | None = None
    batch_size: int | None = None
    shapes: str | None = None
    seq_len: int | None = None
    mode: str | None = None
    policies: tuple[str, ...] = ()
    metric: str | None = None
    metric_min: float | None = None
    preset: str | None = None
    seed: int | None = None

    def given(self) -> list[str]:
        """Return the flags that the user gave, as typed."""
        names = [name for name in self.__slots__ if getattr(self, name) not in (None, ())]
        spelled = {"policies": "policy"}
        return ["--" + spelled.get(name, name).replace("_", "-") for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetFlags:
    """The flags that say how long to search; None where the user gave none."""

    trials: int | None = None
    time_budget: str | None = None
    workers: int | None = None
    screening: bool | None = None


def setting_of(flags: ModelFlags, *, log_folder: str = "") -> Setting:
    """Build the setting of a study, defaults filled in; words are checked before any work.

    Raises:
        InputError: A value is not allowed, a flag is missing, or there is no such metric.
        NotFoundError: There is no such model, policy or preset.
        ModelError: The module of the user's factory or metric cannot be imported.
        MissingDependency: The model needs an optional package.
    """
    from thunder_tune.measure.accuracy import load_metric
    from thunder_tune.measure.policies import policy

    source = _source_of(flags)
    policies = flags.policies or ("same",)
    for name in policies:
        policy(name)
    if (flags.metric is None) != (flags.metric_min is None):
        raise InputError("--metric and --metric-min belong together: give both")
    metric = None
    if flags.metric is not None and flags.metric_min is not None:
        load_metric(flags.metric)
        metric = (flags.metric, flags.metric_min)
    return Setting(
        source=source,
        policies=policies,
        preset=_preset(flags.preset, source.mode),
        metric=metric,
        log_folder=log_folder,
    )


def _source_of(flags: ModelFlags) -> ModelSource:
    if flags.model is None:
        raise InputError("--model is missing: name a model of `thunder-tune models` or a factory")
    device = device_of(flags.device)
    own_code = ":" in flags.model or flags.inputs is not None or flags.metric is not None
    source = ModelSource(
        name=flags.model,
        inputs=flags.inputs,
        device=device,
        dtype=flags.dtype or ("bfloat16" if device == "cuda" else "float32"),
        batch_size=1 if flags.batch_size is None else flags.batch_size,
        seq_len=(2048 if device == "cuda" else 128) if flags.seq_len is None else flags.seq_len,
        mode=_mode(flags.mode),
        seed=flags.seed or 0,
        search_path=(os.getcwd(),) if own_code else (),
    )
    from thunder_tune.models import check_names

    info = check_names(source)
    if flags.batch_size is None and device == "cuda" and info and info.family == "torchvision":
        source = replace(source, batch_size=128)
    return source


def device_of(name: str | None) -> str:
    """Return the device asked for, or the best there is.

    Raises:
        InputError: It is unknown, or not there.
    """
    if name is not None and name not in DEVICES:
        raise InputError(f"unknown device {name!r}: use one of {', '.join(DEVICES)}")
    if name == "cpu":
        return name
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if name == "cuda":
        raise InputError("device 'cuda': PyTorch sees no CUDA device here: use --device cpu")
    return "cpu"


def _mode(text: str | None) -> Mode:
    if text is None or text == "inference":
        return "inference"
    if text == "train":
        return "train"
    raise InputError(f"unknown mode {text!r}: use one of inference, train")


def _preset(name: str | None, mode: Mode) -> str:
    if name is None:
        return "training" if mode == "train" else "inference"
    with warnings.catch_warnings():  # thunder warns of each package it could use
        warnings.simplefilter("ignore")
        from thunder_tune.search_spaces import PRESETS
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}: use one of {', '.join(PRESETS)}")
    return name


def study_name(source: ModelSource, *, has_one_shape: bool = True) -> str:
    """Make up the name of a study, or of a run over several shapes: what it tunes, and a stamp."""
    model = re.sub(r"[^\w.-]+", ".", source.name)
    mode = "-train" if source.mode == "train" else ""
    stamp = time.strftime("%m%d-%H%M%S")
    batch = f"-b{source.batch_size}" if has_one_shape else ""
    return f"{model}-{source.device}-{source.dtype}{batch}{mode}-{stamp}"


def log_folder_of(study: str) -> str:
    """Return the folder for the workers' log files of a study."""
    folder = re.sub(r"[^\w.-]+", "_", study)
    return str(Path(user_data_dir("thunder-tune", appauthor=False)) / "logs" / folder)


def new_spec(name: str | None, flags: ModelFlags, budget: BudgetFlags) -> StudySpec:
    """Build the specification of a study from flags; errors as in `setting_of`."""
    setting = setting_of(flags)
    study = name or study_name(setting.source)
    return StudySpec(
        name=study,
        setting=replace(setting, log_folder=log_folder_of(study)),
        trials=100 if budget.trials is None else budget.trials,
        time_budget_s=seconds_of(budget.time_budget) if budget.time_budget else None,
        seed=flags.seed or 0,
        workers=_workers(budget.workers),
        screening=budget.screening,
    )


def new_specs(
    name: str | None, flags: ModelFlags, budget: BudgetFlags
) -> tuple[str, tuple[StudySpec, ...]]:
    """Build the specification of a study, or of one for each of several shapes.

    Returns:
        The name of it all, and the specifications: with shapes, from small to large, the time
        divided evenly; their trials are those of each.

    Raises:
        InputError: A shape is written in another way, or a flag says what shapes say; and as in
            `setting_of`.
    """
    if flags.shapes is None:
        spec = new_spec(name, flags, budget)
        return spec.name, (spec,)
    shapes = parse_shapes(flags.shapes)
    if flags.batch_size is not None:
        raise InputError("--batch-size and --shapes both say the batch size: give one of them")
    if flags.seq_len is not None and shapes[0].seq_len:
        raise InputError("--seq-len and --shapes both say the sequence length: give one of them")
    of_shape = [
        replace(flags, shapes=None, batch_size=s.batch_size, seq_len=s.seq_len or flags.seq_len)
        for s in shapes
    ]
    name = name or study_name(setting_of(of_shape[0]).source, has_one_shape=False)
    specs = [
        new_spec(study_of_shape(name, shape), its_flags, budget)
        for shape, its_flags in zip(shapes, of_shape, strict=True)
    ]
    return name, divided(specs, budget)


def divided(specs: Sequence[StudySpec], budget: BudgetFlags) -> tuple[StudySpec, ...]:
    """Divide a time budget that the user gave for all among the studies of several shapes."""
    if budget.time_budget is None:
        return tuple(specs)
    share_s = seconds_of(budget.time_budget) / len(specs)
    return tuple(replace(spec, time_budget_s=share_s) for spec in specs)


def resumed_spec(stored: StudySpec, flags: ModelFlags, budget: BudgetFlags) -> StudySpec:
    """Return a stored specification with a new budget.

    Raises:
        InputError: A flag would change what the stored trials mean.
    """
    if flags.given():
        raise InputError(
            f"{', '.join(flags.given())} without --model: study {stored.name!r} keeps its "
            "setting; resume it with --study alone, or name another study"
        )
    spec = replace(stored, workers=_workers(budget.workers))
    if budget.screening is not None:
        spec = replace(spec, screening=budget.screening)
    if budget.trials is not None:
        spec = replace(spec, trials=budget.trials)
    if budget.time_budget is not None:
        spec = replace(spec, time_budget_s=seconds_of(budget.time_budget))
    return spec


def _workers(count: int | None) -> int | None:
    if count is not None and count < 1:
        raise InputError(f"workers {count}: must be at least 1")
    return count
