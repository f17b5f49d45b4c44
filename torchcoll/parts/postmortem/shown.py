"""How what ``postmortem`` found is displayed."""

from collections.abc import Sequence
from typing import TextIO

from torchcoll.parts.postmortem.show import (
    Postmortem,
    answer_of,
    postmortem_charts,
    show_postmortem,
)
from torchcoll.report.shown import Shown


def _show(result: Sequence[Postmortem], format: str, file: TextIO | None) -> None:
    for each in result:
        show_postmortem(each, format, file)


SHOWN = {
    Postmortem: Shown(
        _show,
        charts=postmortem_charts,
        answer=lambda result: answer_of(result.diagnoses[0], result.folder),
    )
}
