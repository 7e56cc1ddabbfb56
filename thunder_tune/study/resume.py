"""Whether a study may go on: on the same program, on the same device."""

from __future__ import annotations

from thunder_tune.errors import ConflictError
from thunder_tune.values.job import Description


def check_resumable(study: str, before: Description, now: Description) -> str:
    """Refuse to mix measurements that have nothing to do with each other.

    Args:
        study: Its name.
        before: As its last run found the model and the machine.
        now: As this run does.

    Returns:
        What the user should know, or "".

    Raises:
        ConflictError: The program or the device is another one.
    """
    if before.program.is_captured and before.program.hash != now.program.hash:
        raise ConflictError(
            f"study {study!r} tuned another program ({before.program.hash[:12]}, now "
            f"{now.program.hash[:12]}): the model or lightning-thunder has changed; take another "
            "--study name"
        )
    here, there = now.fingerprint, before.fingerprint
    changes = "; ".join(here.differences(there))
    if (here.device, here.capability) != (there.device, there.capability):
        raise ConflictError(
            f"study {study!r} was measured on another device ({changes}): take another --study "
            "name"
        )
    if not changes:
        return ""
    return (
        f"the machine's software has changed since this study's last run ({changes}): baselines "
        "are measured anew, old trials only guide the search"
    )
