"""Many runs by plan: matrix, versus, bisect, again."""

from torchcoll.core.parts import Part

PART = Part(
    commands=("again_command", "matrix_command", "versus_command"),
    extends={"compare": "versus_command:compare_folder"},
    sections={"folders": "versus_page:add_versus"},
    answers={"cells": "folder:cells"},
)
