"""`python -m thunder_tune.cli`: the command line of a checkout that is not installed."""

from __future__ import annotations

from thunder_tune.cli import main

main()
