"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Built-in model (see `thunder-tune models`) or your own package.module:factory.",
    ),
]
InputFactory = Annotated[
    str | None,
    typer.Option(
        "--inputs",
        metavar="FACTORY",
        help="package.module:make_inputs; needed with a factory of your own.",
    ),
]
Device = Annotated[
    str | None, typer.Option("--device", help="cuda or cpu. Default: the GPU if there is one.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="float32, bfloat16 or float16. Default: bfloat16 on CUDA, float32 on CPU.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size", help="Samples per call. Default: 128 images on CUDA, otherwise 1."
    ),
]
SeqLen = Annotated[
    int | None,
    typer.Option("--seq-len", help="Tokens per sample. Default: 2048 on CUDA, 128 on CPU."),
]
Mode = Annotated[
    str | None,
    typer.Option("--mode", help="inference, or train (forward and backward). [inference]"),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy", help="Accuracy policy: same, mixed, low or any; may be repeated. [same]"
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric", metavar="FUNCTION", help="Your own measure of quality: package.module:fn."
    ),
]
MetricMin = Annotated[
    float | None, typer.Option("--metric-min", help="Smallest value of --metric to accept.")
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", help="Families of dimensions to offer. Default: by the mode."),
]
Shape = Annotated[
    str | None,
    typer.Option(
        "--shape",
        metavar="SHAPE",
        help="Of a recipe for several shapes: 8, or 8x512 where lengths differ. [the first]",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Of weights, inputs, sampler and block order. [0]"),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Database URL or SQLite file. Default: $THUNDER_TUNE_STORAGE, else your data folder.",
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", help="Devices to use at once. Default: all there are.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address", metavar="ADDRESS", help="Ray cluster to use instead of a local one."
    ),
]
TimeBudget = Annotated[
    str | None,
    typer.Option("--time-budget", metavar="TIME", help="Time for everything: 90, 90s, 7m, 1h30m."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Recipe file. Default: MODEL.recipe.json here."),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object as the last line of stdout, else nothing."),
]
StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="Name of a stored study.")]
