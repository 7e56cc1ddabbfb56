"""A pool without Ray: one worker, whose child processes are this process's own."""

from __future__ import annotations

from thunder_tune.workers.child_process import SESSION, ChildOptions
from thunder_tune.workers.slot_pool import SlotPool
from thunder_tune.workers.trial_child import TrialChild


class InlinePool(SlotPool):
    """Runs one job at a time on this machine's device; see `SlotPool`."""

    def __init__(self, *, log_folder: str = "", session: str = SESSION) -> None:
        """Make the pool; the first child starts with the first job.

        Args:
            log_folder: Folder for log files of jobs whose setting names none; "": no logs.
            session: "module:attribute" that answers the jobs in the child.
        """
        super().__init__([TrialChild(ChildOptions(log_folder=log_folder, session=session))])
