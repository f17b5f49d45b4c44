"""Collects the messages of NCCL's log in the output of one run of nccl-tests."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import CaseResult
from torchcoll.core.units import format_size
from torchcoll.core.variables import kept_variables
from torchcoll.libraries.nccl.algorithms import choices_of
from torchcoll.libraries.nccl.log import NcclLogReader

_EXPECTED = re.compile(r"\b(\d{1,15}) Bytes -> Algo \S+ proto \S+ time (\d{1,12}(?:\.\d+)?)")
_MOST_FACTORS = 4
SET, _CALL = " set by environment to ", " Bytes -> "


class Messages:
    """The messages of NCCL's log in the output of one run."""

    def __init__(self) -> None:
        self._reader = NcclLogReader()
        self._expected_us: dict[int, float] = {}  # size -> the time that NCCL's tuning expects

    def take(self, text: str) -> None:
        """Read a message with its prefix; most are not needed, and skipped."""
        if _CALL in text or SET in text or "CCL version" in text:
            self._reader.read([text.encode()])
            if match := _EXPECTED.search(text):
                self._expected_us[int(match[1])] = float(match[2])

    @property
    def variables(self) -> dict[str, str]:
        """The variables that may be kept, with all values of one that differs between processes."""
        values: dict[str, dict[str, None]] = {}
        for process in self._reader.processes:
            for name, value in process.variables.items():
                values.setdefault(name, {})[value] = None
        return kept_variables({name: " | ".join(texts) for name, texts in values.items()})

    @property
    def versions(self) -> dict[str, str]:
        """``nccl`` or ``rccl`` -> its version, by the first process that logged it."""
        processes = reversed(self._reader.processes)
        return {
            process.library.lower(): process.version for process in processes if process.version
        }

    def expectation(self, results: Iterable[CaseResult]) -> str:
        """How many times as long as NCCL expected the calls took, by size; '' if not known."""
        factors = {
            result.size_bytes: result.reported.time_ns / 1e3 / expected
            for result in results
            if result.reported and result.reported.time_ns
            if COLLECTIVES[result.case.collective].parts(2) == 1
            if (expected := self._expected_us.get(result.size_bytes))
        }
        if not factors:
            return ""
        last = max(factors)
        smaller = [f"{format_size(n)} {factors[n]:.2g}x" for n in sorted(factors) if n != last]
        more = f" ({', '.join(smaller[-_MOST_FACTORS:])})" if smaller else ""
        return (
            f"at {format_size(last)} a call took {factors[last]:.2g} times as long as NCCL "
            f"expected{more}"
        )

    def choose(self, results: Iterable[CaseResult]) -> None:
        """Set ``choices`` of each result to what the library chose for its size."""
        calls = dict.fromkeys(call for process in self._reader.processes for call in process.calls)
        for result in results if calls else ():
            result.choices = choices_of(result, calls)
