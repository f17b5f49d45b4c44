"""Why a job died."""

from torchcoll.core.parts import Part

PART = Part(answers={"reads": "known_texts:command_for"})
