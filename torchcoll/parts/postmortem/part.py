"""Why a job died."""

from torchcoll.core.parts import Part

PART = Part()
