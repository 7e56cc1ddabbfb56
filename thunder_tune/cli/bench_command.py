"""`thunder-tune bench`: a recipe against the baselines, measured now."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.documents import bench_document
from thunder_tune.cli.durations import seconds_of
from thunder_tune.cli.recipe_shapes import one_shape
from thunder_tune.cli.request import device_of, log_folder_of
from thunder_tune.cli.study_commands import newest_recipe
from thunder_tune.errors import InputError
from thunder_tune.recipes import read_recipe
from thunder_tune.values.comparison import Comparison, Contender, Verdict
from thunder_tune.values.documents import failure_text
from thunder_tune.values.job import Setting
from thunder_tune.values.recipe import TUNED, Recipe
from thunder_tune.values.space import PROGRAM
from thunder_tune.values.study import CHANNELS_LAST, Winner, baselines_for, peers_for


def bench(
    subject: Annotated[
        str, typer.Argument(metavar="RECIPE|STUDY", help="Recipe file, or name of a study.")
    ],
    rounds: Annotated[int, typer.Option("--rounds", help="Fresh processes.")] = 3,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline",
            metavar="NAME",
            help="Beside this one alone (again for more); a name may end in :channels-last.",
        ),
    ] = None,
    shape: options.Shape = None,
    time_budget: options.TimeBudget = None,
    storage: options.Storage = None,
    ray_address: options.RayAddress = None,
    as_json: options.Json = False,
) -> int:
    """Time a recipe and all baselines in interleaved blocks over fresh processes.

    Convolutional networks also run with their channels last, as PyTorch recommends. How each
    program was made is printed.
    """
    if rounds < 1:
        raise InputError(f"rounds {rounds}: must be at least 1")
    recipe = one_shape(recipe_of(subject, storage), shape)
    device_of(recipe.source.device)
    names = _asked(baseline, recipe) if baseline else peers_for(recipe.source, _kinds(recipe))
    timeout_s = seconds_of(time_budget) if time_budget else None
    comparison, device = _compare(recipe, names, rounds, timeout_s, ray_address)
    winner = tuned_in(recipe, comparison)
    failure = failure_text(comparison.standing(TUNED).failure)
    commands = _commands(subject, recipe, comparison)
    _print(recipe, comparison, winner, commands, device=device, error=failure, as_json=as_json)
    return exits.FAILED if failure else exits.DONE


def recipe_of(subject: str, storage: str | None) -> Recipe:
    """Read a recipe file, or a stored study's newest recipe.

    Raises:
        RecipeError: The file is missing or damaged.
        NotFoundError: There is no such study, or it has no recipe yet.
    """
    if is_file(subject):
        return read_recipe(Path(subject))
    with services.database(storage) as database:
        return newest_recipe(database, subject)


def is_file(subject: str) -> bool:
    """Tell whether RECIPE|STUDY means a recipe's file."""
    path = Path(subject)
    return path.is_file() or path.suffix == ".json" or os.sep in subject


def _compare(
    recipe: Recipe,
    names: Sequence[str],
    rounds: int,
    timeout_s: float | None,
    ray_address: str | None,
) -> tuple[Comparison, str]:
    from thunder_tune.cli.progress import observing
    from thunder_tune.cli.tables import console
    from thunder_tune.machine import current_fingerprint
    from thunder_tune.study.bench import EXTRA_ROUNDS, compare_now

    setting = setting_of(recipe, "bench")
    baselines = [
        Contender(name=name, assignment={PROGRAM: name}, is_baseline=True) for name in names
    ]
    tuned = Contender(name=TUNED, assignment=recipe.plans[0].assignment)
    stderr = console(stderr=True)
    with (
        observing(stderr, f"recipe {recipe.digest} of {recipe.model}") as observer,
        services.pool(setting, workers=1, ray_address=ray_address) as pool,
    ):
        fingerprint = current_fingerprint(recipe.source.device)
        for difference in fingerprint.differences(recipe.fingerprint):
            observer.on_notice(f"the recipe was tuned elsewhere: {difference}")
        comparison = compare_now(
            setting,
            [*baselines, tuned],
            pool=pool,
            observer=observer,
            rounds=rounds,
            extra_rounds=EXTRA_ROUNDS,
            rehearsed=True,
            timeout_s=timeout_s,
            seed=recipe.source.seed,
        )
    return comparison, fingerprint.device


def _asked(names: Sequence[str], recipe: Recipe) -> tuple[str, ...]:
    """Return the baselines asked for, each once.

    Raises:
        InputError: There is none of a name on this kind of device.
    """
    own = baselines_for(recipe.source.device)
    for name in names:
        if name.removesuffix(CHANNELS_LAST) not in own:
            raise InputError(f"unknown baseline {name!r}: use one of {', '.join(own)}")
        if name.endswith(CHANNELS_LAST) and recipe.source.mode == "train":
            raise InputError(f"baseline {name!r}: channels last is for inference alone")
    return tuple(dict.fromkeys(names))


def _kinds(recipe: Recipe) -> set[str]:
    """Return the kinds of a recipe's classes, of which their ids begin with."""
    return {class_id.partition("-")[0] for class_id in recipe.plans[0].classes}


def _commands(subject: str, recipe: Recipe, comparison: Comparison) -> dict[str, str]:
    """Return by name of each program the Python that makes it of a model."""
    from thunder_tune.compiler.backends import code_of

    loaded = f'load_recipe("{subject}")'
    if not Path(subject).is_file():
        loaded = f'best_recipe(model, inputs, study="{subject}")'
    found = {c.name: code_of(c.name) for c in comparison.contenders if c.is_baseline}
    return {**found, TUNED: f"model = thunder.compile(model, recipe={loaded})"}


def setting_of(recipe: Recipe, purpose: str) -> Setting:
    """Return the setting of the study that found a recipe, as far as the recipe knows it.

    Args:
        recipe: Whose model is measured again.
        purpose: First word of the name of the folder for log files.
    """
    source = recipe.source
    if source.is_user_factory or source.inputs:
        here = os.getcwd()
        others = tuple(folder for folder in source.search_path if folder != here)
        source = replace(source, search_path=(here, *others))
    return Setting(
        source=source,
        policies=(recipe.policy,),
        preset="training" if source.mode == "train" else "inference",
        front_end="auto" if recipe.front_end == "none" else recipe.front_end,
        log_folder=log_folder_of(f"{purpose}-{recipe.digest}"),
    )


def tuned_in(recipe: Recipe, comparison: Comparison) -> Winner | None:
    """Say what the comparison makes of the recipe; None where it could not be measured."""
    from thunder_tune.measure.statistics import decide

    standing = comparison.standing(TUNED)
    if standing.latency_ms is None or standing.ratio is None:
        return None
    verdict: Verdict = "tie"
    if comparison.reference != TUNED and standing.ratio_log_error is not None:
        verdict = decide(standing, family=1)
    lo, hi = standing.ratio_ci95 or (standing.ratio, standing.ratio)
    return Winner(
        assignment=recipe.plans[0].assignment,
        kind=recipe.kind,
        standing=standing,
        verdict=verdict,
        speedup=1.0 / standing.ratio,
        speedup_ci95=(1.0 / hi, 1.0 / lo),
        digest=recipe.digest,
    )


def _print(
    recipe: Recipe,
    comparison: Comparison,
    winner: Winner | None,
    commands: Mapping[str, str],
    *,
    device: str,
    error: str,
    as_json: bool,
) -> None:
    from thunder_tune.cli import tables

    screen = tables.console(stderr=as_json)
    title = f"{recipe.model} on {device}, {len(comparison.rounds)} processes"
    top = (winner,) if winner else ()
    screen.print(tables.confirmed(comparison, top, title=title))
    mode = "with gradients" if recipe.source.mode == "train" else "under torch.no_grad()"
    screen.print(f"as run, called {mode} and warmed up until calls stop becoming faster:")
    for name, code in commands.items():
        screen.print(f"  {name}: {code}", soft_wrap=True, markup=False, highlight=False)
    if error:
        tables.console(stderr=True).print(f"error: {' '.join(error.split())}", soft_wrap=True)
    if as_json:
        document = bench_document(
            recipe, comparison, device=device, tuned=winner, commands=commands, error=error
        )
        print(json.dumps(document, allow_nan=False))
