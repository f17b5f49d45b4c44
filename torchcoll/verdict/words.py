"""The words of a verdict, and from which share of a reference on each is said."""

from __future__ import annotations

from dataclasses import dataclass

from torchcoll.core.summary import Row
from torchcoll.core.units import format_size

PASS, WARN, FAIL, NO_REFERENCE = "PASS", "WARN", "FAIL", "NO REFERENCE"
# Shares of a reference, torchcoll's own choice: healthy systems of results/ and of public logs
# reach 90 to 102 % of the limits in rules/ from the sizes on that stand there; one of eight rails
# that is gone costs 12 %.
GOOD, POOR = 0.9, 0.75


@dataclass(frozen=True)
class Phrase:
    """One part of the sentence. word: PASS, WARN, FAIL, NO REFERENCE, or '' for a plain fact."""

    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.word} {self.text}".strip()


def word_of(share: float) -> str:
    return PASS if share >= GOOD else WARN if share >= POOR else FAIL


def case_text(row: Row) -> str:
    size = format_size(row.nbytes or row.nbytes_requested)
    return f"{row.collective} {size}" if row.collective != "barrier" else row.collective
