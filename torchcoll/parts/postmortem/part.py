"""Why a job died."""

from torchcoll.core.parts import Part

PART = Part(answers={"reads": "log_evidence:command_for"})
