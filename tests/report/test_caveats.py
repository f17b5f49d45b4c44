"""A page prints a caveat in full once; later tables have its first words."""

from torchcoll.core.answer import Answer, Caveat
from torchcoll.report.grid import Grid
from torchcoll.report.page import Section, TitledGrids, shorten_repeated_caveats

TEXT = (
    "7 sizes follow 3.2 us + S / 857 GB/s, as a copy within one A100 does (memory of 2039 GB/s), "
    "6.3 times the 137 GB/s algbw of a ring of 8"
)
SHORT = "7 sizes follow 3.2 us + S / 857 GB/s, as a ... (said above)"


def below(*tables, printed=()):
    above = ["time = mean over calls, " * 6]
    sections = [
        Section("a", tables=[TitledGrids("", [Grid([], [], above=above, below=list(lines))])])
        for lines in tables
    ]
    grids = [section.tables[0].grids[0] for section in shorten_repeated_caveats(sections, printed)]
    assert all(grid.above == above for grid in grids)
    assert sections[0].tables[0].grids[0].below == list(tables[0])  # the tables themselves stay
    return [grid.below for grid in grids]


def test_the_first_table_prints_it_and_the_others_its_first_words():
    marks = ("[1] ", "[2] ", "implausible: ")
    assert below(*([Caveat(TEXT, mark)] for mark in marks)) == [
        [f"[1] {TEXT}"],
        [f"[2] {SHORT}"],
        [f"implausible: {SHORT}"],
    ]


def test_what_stands_above_the_sections_is_printed_already():
    assert below([Caveat(TEXT, "[1] ")], printed=[TEXT]) == [[f"[1] {SHORT}"]]


def test_an_answer_that_is_a_caveat_of_its_table():
    grid = Grid([], [], below=[Caveat(TEXT)], answer=Answer(Caveat(TEXT, "implausible: "), "bad"))
    [section] = shorten_repeated_caveats([Section("a", tables=[TitledGrids("", [grid])])])
    answer = section.tables[0].grids[0].answer
    assert (answer.text, answer.level) == (f"implausible: {SHORT}", "bad")


def test_only_data_is_a_repetition():
    """A line that happens to contain the same words is another line: nobody edits its text."""
    line = f"no section on ranks: 7 implausible ({TEXT})"
    assert below([Caveat(TEXT)], [line, TEXT]) == [[TEXT], [line, TEXT]]


def test_short_and_different_caveats_are_printed_each_time():
    different = Caveat(TEXT.replace("857", "864"))
    short = Caveat("2 cases inconclusive")
    assert below([short, Caveat(TEXT)], [short, different]) == [[short, TEXT], [short, different]]


def test_what_is_true_of_the_runs_is_printed_once():
    line = Caveat("machine: CPU steal 5.5 % during the run", of_runs=True)
    assert below([line, "other"], ["other", line]) == [[line, "other"], ["other"]]


def test_an_answer_is_printed_once():
    text = "no change of behaviour found"
    sections = [
        Section(title, tables=[TitledGrids("", [Grid([], [], answer=Answer(text))])])
        for title in "ab"
    ]
    expected = {(): [True, False], (f"a: {text}",): [False, True], (text,): [False, False]}
    for printed, answered in expected.items():
        shortened = shorten_repeated_caveats(sections, printed)
        assert [bool(section.tables[0].grids[0].answer) for section in shortened] == answered


def test_a_page_without_sections():
    assert shorten_repeated_caveats([]) == []
