"""What NCCL's own messages in another tool's output tell: variables, its version, its choices."""

from __future__ import annotations

from collections.abc import Iterable

from torchcoll.core.result import CaseResult
from torchcoll.core.variables import kept_variables
from torchcoll.libraries.nccl.calls import choices_of
from torchcoll.libraries.nccl.log import Reader

_SET, _CALL = " set by environment to ", " Bytes -> "
_MOST = 4096  # messages that are remembered


class Messages:
    """Of one launch. ``take`` is called for every message of a log of any size."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._known: set[str] = set()

    def take(self, text: str) -> None:
        """A message with its prefix (``host:pid:thread [0] NCCL INFO ...``).

        Most lines tell nothing of what is wanted here. A call comes once an iteration: equal ones
        of any process are read once.
        """
        if _CALL in text:
            message = text.partition(" NCCL ")[2]
            if message in self._known:
                return
            if len(self._known) < _MOST:
                self._known.add(message)
        elif _SET not in text and "CCL version" not in text:
            return
        self._reader.read([text.encode()])

    @property
    def variables(self) -> dict[str, str]:
        """Those that may be kept; of one that differs between the processes every value."""
        values: dict[str, dict[str, None]] = {}
        for process in self._reader.processes:
            for name, value in process.variables.items():
                values.setdefault(name, {})[value] = None
        return kept_variables({name: " | ".join(found) for name, found in values.items()})

    @property
    def versions(self) -> dict[str, str]:
        """``nccl`` or ``rccl`` -> its version, of the first process that tells it."""
        processes = reversed(self._reader.processes)
        return {one.library.lower(): one.version for one in processes if one.version}

    def choose(self, results: Iterable[CaseResult]) -> None:
        """Give each case what the library chose for its size."""
        calls = dict.fromkeys(call for process in self._reader.processes for call in process.calls)
        for result in results if calls else ():
            result.choices = choices_of(result, calls)


def begins_launch(text: str) -> bool:
    """True for a message of the start of a process, which may come before its first own line."""
    return _SET in text or "CCL version" in text
