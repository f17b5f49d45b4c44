"""Does what torchcoll claims hold on this machine? ``doctor --prove``."""

from torchcoll.core.parts import Part

PART = Part(
    options={"doctor": "doctor_command:add_options"},
    extends={"doctor": "doctor_command:run_proof"},
)
