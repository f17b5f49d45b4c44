"""Why a job died."""

from torchcoll.core.commands import Listed
from torchcoll.core.parts import Part

PART = Part(
    commands={
        "postmortem": Listed(
            "find what stopped or ended a job, from the files that it left", "training", "command"
        ),
    },
    public={"Postmortem": "show", "postmortem": "show"},
    answers={"reads": "log_evidence:command_for", "files": "show:job_sections"},
)
