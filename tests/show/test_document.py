"""``torchcoll report``: what stands on the page, and what no text of a file can do to it."""

import base64
import gzip
import hashlib
import json
import shlex
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from error_form import error_tail, error_text, expecting
from handmade import MIB, case, not_run, result, run
from judged import case_of, launch
from made_pairs import pairs_run
from made_runs import measured
from sent import ddp, traffic

from torchcoll.cli import main
from torchcoll.core.answer import Answer
from torchcoll.core.errors import UnavailableError, UnreadableError, UsageError
from torchcoll.core.file import save
from torchcoll.core.result import Verification
from torchcoll.questions.page.document import _lead, page_of
from torchcoll.report.grid import Grid
from torchcoll.report.page import Section, TitledGrids, html_text, page_markdown

pytest.importorskip("matplotlib")

SIZES = (MIB, 4 * MIB, 16 * MIB, 64 * MIB)


class Read(HTMLParser):
    """tags: (name, attributes) of all; scripts: their texts by id; text: everything else."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.scripts, self.text, self._inside = [], {}, "", ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            name = self.tags[-1][1].get("id")
            self.scripts[name] = self.scripts.get(name, "") + data
        elif self._inside != "style":
            self.text += data

    @property
    def data(self):
        return json.loads(gzip.decompress(base64.b64decode(self.scripts["data"])))


def sweep(**changed):
    return run(*(result(case=case(size_bytes=n)) for n in SIZES), **changed)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "one.jsonl"
    save(sweep(), path)
    return str(path)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A file and its page, with its charts."""
    path = tmp_path_factory.mktemp("drawn") / "one.jsonl"
    save(sweep(), path)
    return str(path), html_text(page_of([str(path)]))


def titles(page):
    return [section.title for section in page.sections if section.title]


def test_a_run(file):
    page = page_of([file], command="torchcoll report one.jsonl")
    assert page.title == "all_reduce on gloo with 8 ranks"
    assert titles(page) == [
        "What was run",
        "Time and bandwidth over sizes",
        "Calls and ranks",
        "What the first call costs",
        "Every case",
        "Environment",
        "Not included",
        "Commands",
    ]
    rank, cases = page.answers[:2]
    assert rank.text.startswith("rank 0 (vm) comes last")
    assert [group.label for group in page.sections[0].charts] == ["run"]  # a map of the ranks
    # 64 MiB in 1 ms, times 2 x 7 / 8.
    assert cases.headline == (
        "all_reduce on 8 gloo ranks takes 1.00 ms at 1M and reaches 117 GB/s of busbw at 64M"
    )
    assert cases.details[-1].startswith("NO REFERENCE")
    # The first call took 5 ms, each of the others 1.
    assert any("first call takes 5.00 ms" in one.text for one in page.answers)
    assert page.sections[-1].commands == ["torchcoll report one.jsonl"]


def test_backends_without_a_common_size_are_apart(tmp_path):
    save(run(result(case=case(size_bytes=16))), tmp_path / "a.jsonl")
    gpu = case(backend="nccl", device="cuda")
    fast = result(case=gpu, time_ns={"device": [[500_000] * 21] * 8})
    save(run(fast), tmp_path / "b.jsonl")
    assert "nothing in common in size (16; 64M)" in html_text(page_of([str(tmp_path)]))


def test_every_chart_is_in_the_page_and_nothing_is_fetched(drawn):
    read = Read(drawn[1])
    charts = [own["id"] for tag, own in read.tags if own.get("class") == "chart"]
    assert charts == ["g0", "g1", "g2", "g3"]
    assert [len(group["charts"]) for group in read.data["groups"]] == [1, 1, len(SIZES), 1]
    links = [v for _, own in read.tags for k, v in own.items() if k.endswith(("href", "src"))]
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    policy = next(own["content"] for tag, own in read.tags if "http-equiv" in own)
    plotly = gzip.decompress(base64.b64decode(read.scripts["plotly"]))
    digests = [
        base64.b64encode(hashlib.sha256(text).digest()).decode()
        for text in (read.scripts[None].encode(), plotly)
    ]
    assert policy == (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}'"
    )
    assert len(drawn[1]) < 3_000_000


def test_points_lead_to_rows_and_commands(drawn):
    file, html = drawn
    read = Read(html)
    ids = [own["id"] for tag, own in read.tags if tag == "tr" and "id" in own]
    assert ids == [f"case-0.{n}" for n in range(len(SIZES))]
    assert set(read.data["cases"]) == {f"0.{n}" for n in range(len(SIZES))}
    (curve,) = read.data["groups"][1]["charts"]
    assert curve["traces"][-1]["customdata"] == ["0.0", "0.1", "0.2", "0.3"]
    assert read.data["cases"]["0.1"] == [
        "all_reduce 4M on gloo", 0, f"torchcoll show {file} --explain all_reduce 4M",
    ]  # fmt: skip
    assert read.data["runs"] == [f"torchcoll show --view calls {file}"]


def test_an_answer_is_printed_once(file):
    page = page_of([file])
    read = Read(html_text(page))
    for answer in page.answers:
        headline = answer.text.removeprefix("What the first call costs: ")
        assert read.text.count(headline.removeprefix("Where it switches: ")) == 1


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>](javascript:x) ${$}$ {{ 7*7 }} `|*"


def test_no_text_of_a_file_is_markup(tmp_path):
    path = tmp_path / "x.jsonl"
    bad = sweep(
        header={
            "run_id": HOSTILE,
            "start_utc": HOSTILE,
            "argv": ["python", HOSTILE],
            "spec": {"labels": {HOSTILE: HOSTILE}},
            "environment": {"torch": HOSTILE, "libraries": {"gloo": HOSTILE}, "kernel": HOSTILE},
        },
        members=[{"rank": r, "host": HOSTILE, "device_name": HOSTILE} for r in range(8)],
        events=[{"kind": HOSTILE, "message": HOSTILE}],
    )
    bad.results.append(not_run("failed", HOSTILE))
    bad.results[0].warnings = [HOSTILE]
    save(bad, path)
    page = page_of([str(path)])
    read = Read(html_text(page))
    plain = Read(html_text(page_of_clean(tmp_path)))
    assert {tag for tag, _ in read.tags} == {tag for tag, _ in plain.tags}
    assert sum(tag == "script" for tag, _ in read.tags) == 3
    assert not [k for _, own in read.tags for k in own if k.startswith("on")]
    assert read.text.count("<script>alert(1)</script>") > 5
    assert "49" not in [word for word in read.text.split() if word == "49"]
    text = page_markdown(page)
    outside = [line for line in text.splitlines() if not line.startswith("    ")]
    for line in outside:
        assert "<script" not in line.replace("\\<script", "")
        assert "](java" not in line


def page_of_clean(folder):
    path = folder / "clean.jsonl"
    clean = sweep(events=[{"kind": "event", "message": "x"}], header={"argv": ["python"]})
    clean.results.append(not_run("failed", "x"))
    save(clean, path)
    return page_of([str(path)])


def test_a_slow_rank_comes_before_a_caution(tmp_path):
    slow = result(4, time_ns={"host": [[100] * 9, [100] * 9, [130] * 9, [100] * 9]})
    events = [{"kind": "event", "message": "other processes used 0.9 of 2 cores"}]
    save(run(slow, ranks=4, events=events), tmp_path / "run.jsonl")
    page = page_of([str(tmp_path / "run.jsonl")])
    assert [answer.subject[:6] for answer in page.answers[:2]] == ["rank 2", "all_re"]
    assert "over the median of all other ranks" in page.sections[0].charts[0].title


def test_sides_are_compared_with_the_first(tmp_path):
    paths = [tmp_path / f"{name}.jsonl" for name in ("a1", "a2", "b1", "b2")]
    for path in paths:
        save(sweep(header={"run_id": path.stem}), path)
    sides = zip(["old", "old", "new", "new"], paths, strict=True)
    page = page_of([f"{side}={path}" for side, path in sides])
    assert titles(page)[:2] == ["What was run", "new against old"]
    said = page.answers[0].text  # which names both sides, without the title of the section
    assert said.startswith("new is within 2 % of old at all sizes; not proven: ")


def times_file(path, times_us):
    """A file of times in us by size, on 2 ranks."""
    rows = [f"all_reduce,2,{size},{time}" for size, time in times_us.items()]
    path.write_text("\n".join(["collective,ranks,size,time_us", *rows, ""]))
    return f"{path.stem}={path}"


def test_a_model_is_wrong_about_each_side_apart(tmp_path):
    """10 and 1000 us measured, 100 us of the model: of their mean it would be 0 % wrong. What
    shares no size with it has no section, and the others stand.
    """
    sides = {
        "before": {1024: 10, 4096: 10, 16384: 10},
        "after": {1024: 1000, 4096: 1000, 16384: 1000},
        "large": {16384: 10},
        "model": {1024: 100, 4096: 100},
    }
    page = page_of([times_file(tmp_path / f"{name}.csv", own) for name, own in sides.items()])
    wrong = [one for one in page.sections if one.title.startswith("How wrong the model is")]
    assert [one.title.partition(" about ")[2] for one in wrong] == ["before", "after"]
    for one, name in zip(wrong, ("before", "after"), strict=True):
        assert f"the times of {name}" in one.charts[0].title
    text = page_markdown(page, [str(n) for n in range(99)])
    why = error_text("cases", "")
    assert f"no section on how wrong the model is about large: {why}" in text


def test_launches_of_several_backends_are_compared_by_them(tmp_path):
    cases = [case(size_bytes=n, backend=b) for n in SIZES for b in ("gloo", "ccl")]
    save(run(*(result(case=one) for one in cases)), tmp_path / "x.jsonl")
    page = page_of([str(tmp_path / "x.jsonl")])
    assert "ccl against gloo" in titles(page)


def test_two_unlike_runs_are_compared_without_names(tmp_path):
    """On another kernel each call takes half as long. Runs with the same settings are pooled."""
    for name, kernel, time_ns in (("old", "6.8", 2000), ("new", "6.9", 1000), ("more", "6.9", 900)):
        header = {"run_id": name, "spec": {"labels": {"kernel": kernel}}}
        save(run(measured(time_ns, 2), ranks=2, header=header), tmp_path / f"{name}.jsonl")
    old, new, more = (str(tmp_path / f"{name}.jsonl") for name in ("old", "new", "more"))
    page = page_of([old, new])
    assert titles(page)[:2] == ["What was run", "new against old"]
    assert any(one.text.startswith("new looks 2.0x faster than old") for one in page.answers)
    assert not any("against" in title for title in titles(page_of([new, more])))


def test_no_run_passes_beside_a_comparison_that_calls_it_slower(tmp_path):
    """Both runs pass their fabric. The page that compares them has no PASS beside the slower one,
    and keeps what is wrong with a run.
    """

    def page(**new):
        sides = {"old": launch(case_of(470)), "new": launch(case_of(450, **new))}
        paths = []
        for name, side in sides.items():
            side.header["spec"] = {"labels": {"fabric": "nvswitch-h200"}}
            paths.append(f"{name}={tmp_path / name}.jsonl")
            save(side, tmp_path / f"{name}.jsonl")
        (grid,) = page_of(paths).sections[1].tables[0].grids
        for name in sides:
            (tmp_path / f"{name}.jsonl").unlink()
        return grid

    grid = page()
    assert "verdict" not in [head.text for head in grid.heads]
    assert set(grid.styles) == {""}
    wrong = page(verification=Verification(checked=100, wrong=7), status="wrong")
    assert wrong.heads[2].text == "verdict"
    assert [row[2] for row in wrong.rows] == ["-", "FAIL"]


def test_commands_have_the_variables_of_their_runs(tmp_path):
    """Otherwise the runs of a matrix of variables would all have the same one."""
    for value in "01":
        environment = {"variables": {"TORCH_GLOO_LAZY_INIT": value}}
        header = {"argv": ["--sizes", "1M"], "environment": environment}
        save(sweep(header=header), tmp_path / f"{value}.jsonl")
    (section,) = [s for s in page_of([str(tmp_path)]).sections if s.title == "Commands"]
    command = "torchrun --nproc-per-node 8 -m torchcoll.suite --sizes 1M"
    lines = [f"TORCH_GLOO_LAZY_INIT={value} {command}" for value in "01"]
    assert section.commands == ["\n".join(lines)]


def test_a_filter_leaves_cases_out(file):
    page = page_of([file], filter="size>=16M")
    every = next(section for section in page.sections if section.title == "Every case")
    assert len(every.tables[0].grids[0].rows) == 2
    with pytest.raises(
        UsageError, match=error_text("^filter", error_tail("size>1G", "conditions"))
    ):
        page_of([file], filter="size>1G")


def test_too_many_lines_say_how_to_filter(tmp_path):
    several = [case(size_bytes=MIB, dtype=f"float{n}") for n in range(41)]
    save(run(*(result(2, case=one) for one in several), ranks=2), tmp_path / "x.jsonl")
    page = page_of([str(tmp_path / "x.jsonl")])
    assert "Time and bandwidth over sizes" not in titles(page)
    (left,) = [section for section in page.sections if section.title == "Not included"]
    text = " ".join(left.tables[0].grids[0].below)
    assert error_text("lines", "41 in one panel", "at most 16. --filter collective=") in text


def test_nothing_to_report(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnreadableError, match=expecting("a folder with result files")):
        page_of([str(tmp_path / "empty")])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("hello\n")
    with pytest.raises(UnreadableError, match=error_text("^report", "nothing to report")):
        page_of([str(tmp_path / "other")])


@pytest.mark.parametrize("missing", ["matplotlib.figure", "plotly", "jinja2"])
def test_a_missing_extra_is_named(missing, file, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UnavailableError, match=r"pip install '\.\[report\]'\.$"):
        html_text(page_of([file], inline=missing != "matplotlib.figure"))


def test_markdown_has_its_pictures_beside_it(file, tmp_path, capsys):
    out = tmp_path / "r.md"
    assert main(["report", file, "-o", str(out)]) == 0
    text = out.read_text()
    names = [f"r-{number}.svg" for number in (1, 2, 3, 4)]
    for name in names:
        assert f"]({name})" in text
        assert (tmp_path / name).read_text().startswith("<?xml")
    assert "###" not in text  # none of its tables has a title
    assert capsys.readouterr().out.rstrip().endswith("pictures: r-1.svg, r-2.svg, r-3.svg, r-4.svg")
    out.unlink()
    assert main(["report", file, "-o", str(out)]) == 2
    assert error_tail("r-1.svg", "a file that does not exist") in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("r.txt", error_tail("r.txt", "a file that ends in .html or .md")),
        ("no/r.html", expecting("a folder that exists")),
        ("there.html", expecting("a file that does not exist")),
    ],
)
def test_where_it_cannot_be_written(output, says, file, tmp_path, capsys):
    (tmp_path / "there.html").write_text("x")
    assert main(["report", file, "-o", str(tmp_path / output)]) == 2
    assert says in capsys.readouterr().err
    assert (tmp_path / "there.html").read_text() == "x"


@pytest.mark.parametrize("command", ["show", "compare", "trace", "pairs"])
def test_a_page_has_the_finding_of_the_terminal_and_its_picture_on_top(command, tmp_path, capsys):
    """The findings are compared as data, not by their words."""
    found = {"show": [sweep()], "compare": [sweep(), sweep()], "trace": [traffic(ddp, steps=4)]}
    files = [str(tmp_path / f"{side}.jsonl") for side in ("old", "new")]
    for one, path in zip(found.get(command, [pairs_run(5, slow=3)]), files, strict=False):
        one.save(path) if command == "trace" else save(one, path)
    sides = [f"{Path(path).stem}={path}" for path in files]
    read = sides if command == "compare" else files[:1]
    main([command, *read, "--format", "json"])
    finding = json.loads(capsys.readouterr().out)["answer"]
    page = page_of(read)
    names = ("subject", "size", "unit", "certainty", "level", "next_step")
    findings = [[answer.to_json()[name] for name in names] for answer in page.answers]
    assert [finding[name] for name in names] in findings
    assert page.sections[0].title == "" and len(page.sections[0].charts) == 1
    groups = [group for section in page.sections for group in section.charts]
    assert all(chart.caption for group in groups for chart in group.charts)


def test_the_ranks_of_one_capture_are_one_traffic(tmp_path):
    whole = traffic(ddp)
    for rank in (0, 1):
        part = replace(whole, calls={rank: whole.calls[rank]})
        part.save(tmp_path / f"traffic-rank{rank}.jsonl")
    page = page_of([str(tmp_path)])
    (title,) = (one for one in titles(page) if one.startswith("What a training sends"))
    assert "rank" not in title
    # A job that began again writes beside: the last one counts, and a note says so.
    part.save(tmp_path / "traffic-rank1-2.jsonl")
    replace(part, calls={0: whole.calls[0]}).save(tmp_path / "traffic-rank0-2.jsonl")
    page = page_of([str(tmp_path)])
    assert sum(one.startswith("What a training sends") for one in titles(page)) == 1
    assert "holds 2 captures: this is the last" in html_text(page)


def test_the_picture_on_top_is_of_the_first_answer():
    answer = Answer("rank 1 is late", "doubt")
    tables = [TitledGrids("", [Grid([], [], answer=answer)])]
    sections = [Section("runs", charts=["curves"]), Section("sent", charts=["step"], tables=tables)]
    _lead(sections, [replace(answer, before="sent: ")])
    assert [section.charts for section in sections] == [["step"], ["curves"], []]


def test_pairs_traffic_and_a_log_in_one_page(tmp_path):
    save(pairs_run(5, slow=3), tmp_path / "pairs.jsonl")
    traffic(ddp).save(tmp_path / "sent.jsonl")
    log = tmp_path / "log.txt"
    log.write_text("host:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n")
    page = page_of([str(tmp_path / name) for name in ("pairs.jsonl", "sent.jsonl", "log.txt")])
    found = {section.title: section for section in page.sections}
    for title, words in (
        ("Who is slow", "show"),
        ("What a training sends", "trace"),
        ("What the libraries say", "log"),
    ):
        assert found[title].commands[0].startswith(f"torchcoll {words} {tmp_path}/")
    assert "sent.jsonl" not in found["Who is slow"].commands[0]
    assert found["What a training sends"].commands[0].endswith("/sent.jsonl")
    assert page.answers[0].text.startswith("rank 3 ")
    assert "Every case" not in found
    assert html_text(page)


@pytest.mark.parametrize("suspects", [0, 1])
@pytest.mark.parametrize("fails", [False, True])
def test_the_section_of_pairs_accuses_in_place_of_the_first_answer(suspects, fails, tmp_path):
    """What the run said of a suspect is said once; a wrong result is said as well."""
    measured = pairs_run(5, slow=3)
    measured.events = [{"kind": "suspect", "message": "host n3 is slow"}] * suspects
    if fails:
        measured.results[1].status = "wrong"
        measured.results[1].verification = Verification(checked=100, wrong=7)
    save(measured, tmp_path / "pairs.jsonl")
    texts = [answer.text for answer in page_of([str(tmp_path / "pairs.jsonl")]).answers]
    assert any(text.startswith("FAIL") for text in texts) == fails


def test_the_names_given_are_those_of_the_page(tmp_path):
    """Also of files of a versus or a matrix, which have a name of their own."""
    labels = {"spec": {"labels": {"cell": "auto"}}}
    for number, name in enumerate(("first", "second")):
        header = {**labels, "start_utc": f"2026-01-0{number + 1}T00:00:00Z"}
        save(sweep(header=header), tmp_path / f"{name}.jsonl")
    page = page_of([f"oneccl={tmp_path}/first.jsonl", f"gloo={tmp_path}/second.jsonl"])
    texts = [answer.text for answer in page.answers]
    assert "gloo" in texts[0] and "oneccl" in texts[0]
    grids = [
        grid for section in page.sections for titled in section.tables for grid in titled.grids
    ]
    assert not any("auto" in cell for grid in grids for row in grid.rows for cell in row)


def test_every_command_of_a_page_works(file, capsys, monkeypatch):
    """Options move from command to command; what a page tells people to type moves with them."""
    monkeypatch.chdir(Path(file).parent)
    page = page_of([file])
    commands = [command for section in page.sections for command in section.commands if command]
    assert any("--view calls" in command for command in commands)
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "torchcoll"
        if words[0] not in ("plot", "report"):  # which write files
            assert main(words) in (0, 1), capsys.readouterr().err
