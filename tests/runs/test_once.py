"""A caveat is said once on a page."""

from __future__ import annotations

from torchcoll.report.answer import Answer
from torchcoll.report.grid import Grid
from torchcoll.report.page import Section, Titled
from torchcoll.runs.once import said_once

CORE = (
    "7 sizes follow 3.2 us + S / 857 GB/s, as a copy within one A100 does (memory of 2039 GB/s), "
    "6.3 times the 137 GB/s algbw of a ring of 8"
)
CAUSES = ": likely one rank only, or a wrong number of ranks"
SHORT = "7 sizes follow 3.2 us + S / 857 GB/s, as a ..."


def below(answers, *lines):
    grids = [Grid([], [], above=["time = mean over calls, " * 4], below=list(own)) for own in lines]
    sections = [Section("a", parts=[Titled("", [grid]) for grid in grids])]
    [found] = said_once([Answer(text) for text in answers], sections)
    assert all(
        part.grids[0].above == grids[0].above for part in found.parts
    )  # it says what is read
    return [part.grids[0].below for part in found.parts]


def test_the_first_says_it_and_others_its_first_words():
    line = CORE + CAUSES
    assert below([], [f"[1] {line}"], [f"[2] {line}"], [f"implausible: {line}"]) == [
        [f"[1] {line}"],
        [f"[2] {SHORT} (said above)"],
        [f"implausible: {SHORT} (said above)"],
    ]


def test_what_the_answer_says_is_said():
    answer = f"Where it switches: implausible: {CORE}{CAUSES}"
    assert below([answer], [f"[1] {CORE}{CAUSES}"]) == [[f"[1] {SHORT} (said above)"]]


def test_within_a_sentence_the_sentence_stands():
    line = f"no section on ranks: 7 implausible ({CORE})"
    assert below([], [f"[1] {CORE}{CAUSES}"], [line]) == [
        [f"[1] {CORE}{CAUSES}"],
        [f"no section on ranks: 7 implausible ({SHORT})"],
    ]


def test_what_is_short_or_differs_is_said_each_time():
    other = CORE.replace("857", "864")
    lines = ["2 cases unclear", CORE], ["2 cases unclear", other]
    assert below([], *lines) == [list(own) for own in lines]


def test_a_page_without_sections():
    assert said_once([], []) == []
