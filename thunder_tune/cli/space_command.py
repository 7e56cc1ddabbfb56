"""`thunder-tune space` and `thunder-tune models`: what may be tuned."""

from __future__ import annotations

import json

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.documents import space_document
from thunder_tune.cli.request import ModelFlags, setting_of


def space(
    model: options.Model = None,
    inputs: options.InputFactory = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    batch_size: options.BatchSize = None,
    seq_len: options.SeqLen = None,
    mode: options.Mode = None,
    policy: options.Policies = None,
    preset: options.Preset = None,
    seed: options.Seed = None,
    as_json: options.Json = False,
) -> int:
    """Print a model's program and search space, and why choices were left out."""
    from thunder_tune.cli import tables

    flags = ModelFlags(
        model=model,
        inputs=inputs,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        seq_len=seq_len,
        mode=mode,
        policies=tuple(policy or ()),
        preset=preset,
        seed=seed,
    )
    description = services.description_of(setting_of(flags))
    screen = tables.console(stderr=as_json)
    if not description.program.is_captured:
        screen.print(f"no front end could capture the model: {description.program.reason}")
    shown = (
        tables.program(description),
        tables.dimensions(description),
        tables.excluded(description),
    )
    for part in shown:
        if part is not None:
            screen.print(part)
            screen.print()
    for note in description.notes:
        screen.print(f"note: {note}", soft_wrap=True)
    if as_json:
        print(json.dumps(space_document(description), allow_nan=False))
    return exits.DONE


def models(as_json: options.Json = False) -> int:
    """List the built-in models."""
    from thunder_tune.cli import tables
    from thunder_tune.models import catalogue

    infos = catalogue()
    if as_json:
        listed = [
            {"name": i.name, "family": i.family, "description": i.description} for i in infos
        ]
        print(json.dumps({"models": listed}))
        return exits.DONE
    made = tables.table("Built-in models", "name", "family", "input")
    for info in infos:
        made.add_row(info.name, info.family, info.description)
    screen = tables.console()
    screen.print(made)
    screen.print(
        "Your own: --model package.module:factory --inputs package.module:make_inputs",
        soft_wrap=True,
    )
    return exits.DONE
