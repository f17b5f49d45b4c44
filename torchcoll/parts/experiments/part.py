"""Many runs by plan: matrix, versus, bisect, again."""

from torchcoll.core.commands import Listed
from torchcoll.core.parts import Part

PART = Part(
    commands={
        "versus": Listed(
            "measure A and B in turn until each case is decided", "compare", "versus_command"
        ),
        "matrix": Listed(
            "measure many runs over variables, ranks or libraries", "compare", "matrix_command"
        ),
        "bisect": Listed(
            "find the version at which a case became slower, faster or wrong",
            "compare",
            "again_command",
        ),
        "again": Listed(
            "run again what a file ran, and judge whether it is reproduced",
            "compare",
            "again_command",
        ),
    },
    extends={"compare": "versus_command:compare_folder"},
    sections={"folders": "versus_page:add_versus"},
    answers={"cells": "folder:cells"},
)
