"""85 logs of dead jobs from public threads, and what each should lead to.

Names, addresses and figures are changed, and the logs are shortened to the lines that matter and
some noise. ``public/truth.jsonl`` was written from the threads before the code that answers them.
It has one line for each log:

- thread: where the log comes from.
- ranks: ranks that an answer may name as the cause; may: ranks that it may name beside these.
- says, remedy: patterns that the first paragraph of the answer has to match.
- never: a pattern that it must not match, such as the obvious wrong answer.

An answer is wrong if it names another rank, or matches ``never``. It is right if it is not wrong
and matches all other patterns. Any other answer is of no use, which is no error.
"""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from torchcoll.cli import main

PUBLIC = Path(__file__).parent / "public"
TRUTHS = [json.loads(line) for line in (PUBLIC / "truth.jsonl").read_text().splitlines()]


def answer_of(path):
    """(exit code, first paragraph of the answer, the JSON)."""
    texts = []
    for format in ("table", "json"):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            code = main(["postmortem", str(path), "--format", format])
        texts.append(output.getvalue())
    first = " ".join(texts[0].split("\n\n")[0].split())
    return code, first, json.loads(texts[1]) if texts[1] else {}


def judge(truth, first, document):
    """``right``, ``no use`` or ``wrong``, with the reason."""
    named = {
        int(n)
        for name in document.get("answer", {}).get("worst", [])
        for n in re.findall(r"^rank (\d+)$", name)
    }
    named |= {rank for job in document.get("jobs", []) for rank in job["culprits"]}
    if innocent := named - {*truth["ranks"], *truth["may"]}:
        return "wrong", f"names {sorted(innocent)}"
    if truth["never"] and re.search(truth["never"], first):
        return "wrong", f"says {truth['never']}"
    for pattern in (*truth["says"], truth["remedy"]):
        if not re.search(pattern, first):
            return "no use", f"no {pattern!r}"
    return "right", ""


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth["file"].removesuffix(".log"))
def test_a_public_log_leads_to_its_cause_and_remedy(truth):
    _, first, document = answer_of(PUBLIC / truth["file"])
    verdict, why = judge(truth, first, document)
    assert verdict == "right", f"{why}: {first}"


@pytest.mark.parametrize("name", ["slurm-oom-tasks", "ctrl-c-of-a-hang", "horovod-missing-ranks"])
def test_a_time_before_each_line_changes_nothing(name, tmp_path):
    """As ``kubectl logs --timestamps`` prints it."""
    truth = next(truth for truth in TRUTHS if truth["file"] == f"{name}.log")
    lines = (PUBLIC / truth["file"]).read_text().splitlines()
    path = tmp_path / truth["file"]
    path.write_text("".join(f"2026-11-28T10:00:00.123456Z {line}\n" for line in lines))
    _, first, document = answer_of(path)
    assert judge(truth, first, document) == ("right", "")


def test_there_are_at_least_two_logs_of_most_kinds():
    assert len(TRUTHS) == len({truth["thread"] for truth in TRUTHS}) == 85
