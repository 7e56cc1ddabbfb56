"""Exit statuses, and how an error is told: the one place for both."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence

import typer
import typer.main

from thunder_tune.errors import ThunderTuneError
from thunder_tune.values.study import Outcome

DONE = 0
FAILED = 1
WRONG_WORDS = 2
CLAIM_BROKEN = 3
"""`verify --fail-if-slower` found a recipe slower than it claims."""
INTERRUPTED = 130

DEBUG_VARIABLE = "THUNDER_TUNE_DEBUG"


def status_of(outcome: Outcome) -> int:
    """Return the exit status that says how a study ended."""
    if outcome.state == "interrupted":
        return INTERRUPTED
    return DONE if outcome.best is not None and outcome.state == "done" else FAILED


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; every error is one line on stderr."""
    from thunder_tune.cli.app import app

    try:
        command = typer.main.get_command(app)
        status = command.main(
            args=list(arguments), prog_name="thunder-tune", standalone_mode=False
        )
    except ThunderTuneError as error:
        return _tell(str(error), error.exit_status, arguments)
    except typer.TyperException as error:
        return _tell(_usage(error), WRONG_WORDS, arguments)
    except (KeyboardInterrupt, typer.Abort):
        return _tell("interrupted", INTERRUPTED, arguments)
    except Exception as error:  # the outermost boundary: nobody above could handle it
        return _tell(_unexpected(error), FAILED, arguments)
    return status if isinstance(status, int) else DONE


def _tell(message: str, status: int, arguments: Sequence[str]) -> int:
    """Print an error as one line on stderr and, with --json, as an object on stdout."""
    line = " ".join(message.split())
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exc()
    print(f"error: {line}", file=sys.stderr)
    if "--json" in arguments:
        from thunder_tune.cli.documents import error_document

        print(json.dumps(error_document(arguments[0], line)))
    return status


def _usage(error: typer.TyperException) -> str:
    """Say what is wrong with the words of a command line and where the right ones are listed."""
    text = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    path = context.command_path.partition(" ")[2] if context is not None else ""
    command = f" {path}" if path else ""
    return f"{text.rstrip('.')}: see thunder-tune{command} --help"


def _unexpected(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__}: {error} ({frame.filename}:{frame.lineno}); "
        f"set {DEBUG_VARIABLE}=1 for the traceback"
    )
