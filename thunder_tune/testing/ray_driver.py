"""A controller in a process of its own, for tests of what happens to it.

`python -m thunder_tune.testing.ray_driver LOG_FOLDER` starts a Ray pool, measures a candidate,
submits one that hangs, and prints "ready". At Ctrl-C it prints what the pool still does, closes
the pool and ends; nothing else goes to its standard output.
"""

from __future__ import annotations

import signal
import sys

from thunder_tune.testing.pool_contract import SETTING, run, trial
from thunder_tune.testing.scripted_session import SCRIPTED_SESSION
from thunder_tune.values.job import Limits, Setting
from thunder_tune.workers import start_pool


def main(log_folder: str) -> None:
    """Run until Ctrl-C."""
    pool = start_pool(
        device="cpu",
        workers=None,
        ray_address=None,
        log_folder=log_folder,
        limits=Limits(),
        session=SCRIPTED_SESSION,
    )
    assert run(pool, trial()).state == "complete"
    patient = Setting(source=SETTING.source, limits=Limits(compile_s=600.0))
    pool.submit(trial("hang", setting=patient))
    try:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            pool.wait(600.0)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        still_running = pool.wait(0.5) == []
        pool.cancel()
        after = run(pool, trial()).state
        pool.close()
        pool.close()
        sys.stdout.write(f"{'running' if still_running else 'dead'} {after}\n")


if __name__ == "__main__":
    main(sys.argv[1])
