"""`thunder-tune dashboard`: the web application on the database."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

from thunder_tune.cli import exits, options, services


def dashboard(
    storage: options.Storage = None,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to serve at. Any but this machine's needs a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0: any that is free.")
    ] = 8484,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="THUNDER_TUNE_TOKEN",
            help="Secret that readers need. Default: a new one, with a --host of the network.",
        ),
    ] = None,
) -> int:
    """Show studies, trials, programs and recipes in a browser; Ctrl-C ends it."""
    from thunder_tune.dashboards import serving

    needed = serving.token_for(host, token)
    with (
        services.database(storage, is_patient=False) as database,  # who waits reloads the page
        serving.bind(host, port) as listener,
    ):
        place = serving.address(host, listener.getsockname()[1], needed)
        print(f"{database.shown_url} is shown at {place} (Ctrl-C ends)", file=sys.stderr)
        with suppress(KeyboardInterrupt):  # the way to end it
            serving.serve(database, listener, host=host, token=needed)
    return exits.DONE
