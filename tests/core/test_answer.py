"""The grammar of answers: what a reader is told, for any subject, size and certainty."""

import itertools
import random
import re

import pytest

from torchcoll.core.answer import (
    CANNOT_TELL,
    CERTAIN,
    PROBABLY,
    Answer,
    format_quantity,
    nothing_found,
)
from torchcoll.stats.power import ACT_ON_ALL, ACT_ON_CASE

# (fields of an answer, its sentence): worked out by hand.
SENTENCES = (
    (
        {
            "subject": "rank 1",
            "verb": "is late by {} a step",
            "size": 50e6,
            "unit": "ns",
            "scope": "(82 % of all waiting, last in 18 of 19 steps)",
            "certainty": PROBABLY,
            "level": "doubt",
        },
        "Probably rank 1 is late by 50.0 ms a step (82 % of all waiting, last in 18 of 19 steps)",
    ),
    (
        {
            "subject": "3 of 64 cases",
            "many": True,
            "verb": "is {} slower",
            "size": 3.13,
            "unit": "x",
            "certainty": CERTAIN,
            "level": "bad",
        },
        "3 of 64 cases are 3.1x slower",
    ),
    (
        {
            "subject": "all_gather 1K",
            "verb": "is slower",
            "certainty": CANNOT_TELL,
            "level": "doubt",
            "scope": "(3 runs vary by 12 to 49 %)",
        },
        "Cannot tell whether all_gather 1K is slower (3 runs vary by 12 to 49 %)",
    ),
    (
        {"subject": "the first calls", "many": True, "verb": "takes", "size": 1.5e9, "unit": "ns"},
        "the first calls take 1.50 s",
    ),
    ({"subject": "13 of 13 cases correct"}, "13 of 13 cases correct"),
)


@pytest.mark.parametrize(("fields", "sentence"), SENTENCES)
def test_sentences(fields, sentence):
    assert Answer(**fields).headline == sentence


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.13, "x", "3.1x"),
        (2180000, "x", "2180000x"),
        (1.048, "x", "1.05x"),
        (0.12, "%", "12 %"),
        (0.048, "%", "4.8 %"),
        (0.9949, "%", "99 %"),
        (1.004, "%", "100 %"),
        (1.5e6, "ns", "1.50 ms"),
        (1.2149, "GB/s", "1.21 GB/s"),
        (0.000123, "GB/s", "0.000123 GB/s"),
        (29000, "calls", "29000 calls"),
        (1 << 30, "B", "1 GiB"),
        (0, "GB/s", "0 GB/s"),
    ],
)
def test_quantities(value, unit, text):
    assert format_quantity(value, unit) == text


def test_no_answer_contradicts_its_level_has_an_exponent_or_more_than_two_lines():
    random.seed(7)
    subjects = (("rank 3 (node000)", False), ("2 of 13 cases", True), ("all_gather 64M", False))
    verbs = ("is slow", "is {} slower", "takes", "was last in", "has")
    certainties = ("", CERTAIN, PROBABLY, CANNOT_TELL)
    for (subject, many), verb, certainty in itertools.product(subjects, verbs, certainties):
        for unit in ("x", "%", "ns", "B", "GB/s"):
            size = 10 ** random.uniform(-4, 8)
            level = "doubt" if certainty == CANNOT_TELL else random.choice(("good", "doubt", "bad"))
            answer = Answer(
                subject,
                level,
                verb=verb,
                many=many,
                size=size,
                unit=unit,
                scope="in 18 of 19 steps",
                certainty=certainty,
                next_step="record about 60 steps",
            )
            sentence = answer.headline
            assert not re.search(r"\d[eE][+-]?\d", sentence), sentence
            assert "  " not in sentence and "{}" not in sentence
            assert len(sentence) <= 200
            assert not (many and re.search(r"cases (is|takes|was|has)\b", sentence)), sentence
            assert many or not re.search(r"(\)|64M) (are|take|were|have)\b", sentence), sentence
            assert sentence.startswith("Cannot tell") == (certainty == CANNOT_TELL)
            document = answer.to_json()
            assert (document["headline"], document["certainty"]) == (sentence, certainty or None)
            assert document["size"] == size


@pytest.mark.parametrize("level", ["good", ""])
def test_what_cannot_be_told_is_not_good(level):
    with pytest.raises(ValueError, match="cannot tell"):
        Answer("rank 1", level, verb="is slow", certainty=CANNOT_TELL)


def test_nothing_found_is_only_said_where_it_would_have_been_found():
    step = "make 12 runs"
    found = nothing_found("node", "is slow", 0.034, ACT_ON_ALL, step)
    assert found.headline == "no node is slow (a slowdown of 3.4 % would have been found)"
    assert (found.level, found.detectable, found.next_step) == ("good", 0.034, "")
    unclear = nothing_found("case", "is slow", 0.8, ACT_ON_CASE, step)
    assert unclear.headline == (
        "Cannot tell whether a case is slow (only a slowdown of 80 % or more would have been found)"
    )
    assert (unclear.level, unclear.next_step) == ("doubt", step)
    senseless = nothing_found("rank", "is late", 11.5, 0.1, step, what="delay", of=" of a step")
    assert senseless.headline == (
        "Cannot tell whether a rank is late (even a delay of 100 % of a step may be hidden)"
    )
    unknown = nothing_found("case", "is slow", None, ACT_ON_CASE, step)
    assert unknown.text == (
        "Cannot tell whether a case is slow (a slowdown of any size may be hidden). Next: make 12 "
        "runs"
    )
