"""Memory that a recording and its callers share, in both directions, without copies.

Results lie in the recording's memory: they are lent to callers for as long as none of them keeps
one. Inputs lie in the callers' memory: they are borrowed for as long as they come at one address.
Each goes over to copies where it must, and back after a few calls in which it need not have; each
time it takes twice as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_FIRST_PATIENCE = 2


class Lender:
    """Hands out what each replay of a recording overwrites: where it lies, or as copies.

    What is lent must be gone before the next replay. Where it is not, the recording is to be made
    anew in other memory (the old one stays with whoever holds it), and results are copies for now.

    Args:
        least: Results of fewer bytes are always copied.
    """

    def __init__(self, least: int = 0) -> None:
        self._least = least
        self._patience = 0
        self._left = 0
        self._results: Sequence[Any] = ()
        self._can_lend: list[bool] = []
        self._users: list[int] = []
        self._copies: list[StorageWeakRef] = []

    def take(self, results: Sequence[Any], others: Sequence[Any]) -> None:
        """Take over the results of a new recording.

        Args:
            results: Tensors, or what is no tensor.
            others: Values whose memory somebody else reads or writes.
        """
        theirs = {storage_of(x) for x in others if isinstance(x, torch.Tensor)}
        self._results = results
        self._can_lend = [
            isinstance(x, torch.Tensor)
            and x.untyped_storage().nbytes() >= self._least
            and storage_of(x) not in theirs
            for x in results
        ]
        self._users = self._count_users()

    def _count_users(self) -> list[int]:
        """Return by how many the memory of each result is held."""
        return [
            torch._C._storage_Use_Count(storage_of(x))
            for x, can_lend in zip(self._results, self._can_lend, strict=True)
            if can_lend
        ]

    def is_owed(self) -> bool:
        """Whether something that was lent, or a view of it, is still there."""
        if self._count_users() == self._users:
            return False
        self._patience = self._left = max(2 * self._patience, _FIRST_PATIENCE)
        return True

    def hand_out(self) -> list[Any]:
        """Return the results of the replay just made; one at two places is one tensor."""
        if self._copies:
            dropped = all(copy.expired() for copy in self._copies)  # type: ignore[no-untyped-call]
            self._left = self._left - 1 if dropped else self._patience
        made: dict[int, Any] = {}
        for x, can_lend in zip(self._results, self._can_lend, strict=True):
            if id(x) not in made and isinstance(x, torch.Tensor):
                made[id(x)] = x.detach() if can_lend and not self._left else x.clone()
        self._copies = []
        if self._left:
            could = zip(self._results, self._can_lend, strict=True)
            self._copies = [_weak(made[id(x)]) for x, can_lend in could if can_lend]
        return [made.get(id(x), x) for x in self._results]


class Borrower:
    """Decides which inputs a recording reads where the caller has them.

    An allocator gives each step's tensors the addresses of the last step's, as a rule.

    Args:
        least: Inputs of fewer bytes are always copied.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._patience = 0
        self._calls = 0
        self._seen: list[int] = []

    def wants(self, inputs: Sequence[Any]) -> list[bool]:
        """Return for each input of a call whether to borrow it."""
        large = [isinstance(x, torch.Tensor) and x.nbytes >= self._least for x in inputs]
        addresses = [x.data_ptr() for x, is_large in zip(inputs, large, strict=True) if is_large]
        self._calls = self._calls + 1 if addresses == self._seen else 0
        self._seen = addresses
        return [is_large and self._calls >= self._patience for is_large in large]

    def was_elsewhere(self) -> None:
        """Note that what was borrowed did not come at its address again."""
        self._patience = max(2 * self._patience, _FIRST_PATIENCE)


def storage_of(x: torch.Tensor) -> int:
    """Return the address of what holds a tensor's memory, which its views share."""
    address: int = x.untyped_storage()._cdata
    return address


def _weak(x: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]
