"""Many runs by plan: matrix, versus, bisect, again."""

from torchcoll.core.parts import Part

PART = Part(
    commands=("versus_command", "matrix_command", "again_command"),
    extends={"compare": "versus_command:compare_folder"},
    sections={"folders": "versus_page:add_versus"},
    answers={"cells": "folder:cells"},
)
