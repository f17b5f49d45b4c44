"""A file from elsewhere may hold anything: it is shown or refused, and no text of it acts."""

import copy
import io
import json

import pytest
from handmade import Terminal, case, not_run, result, run
from hypothesis import given, settings
from hypothesis import strategies as st

from torchcoll.cli import main
from torchcoll.core.errors import UnreadableError
from torchcoll.core.file import records_of
from torchcoll.core.result import Verification
from torchcoll.questions.show.show import show
from torchcoll.reading.inputs import load, load_all

VIEWS = (
    {},
    {"columns": "all"},
    {"format": "markdown"},
    {"format": "csv"},
    {"format": "json"},
    {"view": "ranks"},
    {"view": "calls"},
    {"view": "pivot:collective"},
    {"view": "pivot:label", "metric": "time"},
    {"view": "pivot:ranks"},
    {"percentiles": "50"},
    {"over_ranks": "mean"},
    {"clock": "issue"},
    {"view": "ranks", "format": "csv"},
    {"view": "calls", "format": "json"},
    {"view": "pivot:file", "format": "markdown"},
)
EVIL = "\x1b[2J\x07a\nb\r\u202e\x9b|\u2028"


def small_run():
    """Every field of a file has a value."""
    asked = case(
        collective="all_to_all_v",
        op=None,
        in_place=False,
        splits="1,3",
        group="mod:2/0",
        size_bytes=8,
    )
    launch = run(
        result(
            2,
            case=asked,
            size_bytes=8,
            warmup_ns=[[5], [6]],
            time_ns={"host": [[5, 6], [7, 8]], "issue": [[1, 2], [3, 4]]},
            batches=[2],
            members=[0, 1],
            connect_ns=[3, 4],
            communicator="new_group",
            stop="cap",
            warnings=["slow"],
            verification=Verification(4, 1, (1,), 2),
            status="wrong",
            reason="1 of 4",
        ),
        not_run("oom", "no memory", ranks=2),
        ranks=2,
        events=[{"kind": "signal", "message": "SIGINT", "utc": "2026"}],
        end={"status": "failed", "reason": "why", "exit_code": 5, "wall_s": 1.5},
        in_flight=case(),
    )
    labels = {"net": "ib", "fabric": "ib-ndr:8", "link_gbps": "5", "gpu": "A100"}
    launch.header["spec"] |= {"labels": labels, "order": "shuffled", "splits": "1,3"}
    launch.header["environment"] |= {"variables": {"NCCL_ALGO": "Ring"}, "cores": 2}
    launch.header |= {"start_utc": "2026", "connects": "first call", "argv": ["-n", "2"]}
    launch.members[0] |= {"device": "cuda:0", "nvlinks": 18, "nvlink_to_switch": True}
    return [{"record": record, **data} for record, data in records_of(launch)]


RECORDS = json.loads(json.dumps(small_run()))


def places(value, above=()):
    """The path of each value in a document."""
    many = value if isinstance(value, list) else ()
    for key, child in value.items() if isinstance(value, dict) else enumerate(many):
        yield (*above, key)
        yield from places(child, (*above, key))


PLACES = [p for p in places(RECORDS) if len(p) > 1]
VALUES = [
    None,
    True,
    -1,
    0,
    3,
    1 << 62,
    1 << 63,
    10**400,
    -(10**30),
    1.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    EVIL,
    "\ud800",
    "\u00b2",
    "cuda:" + "9" * 5000,
    "x" * 300,
    [],
    {},
    [[]],
    [EVIL],
    {EVIL: EVIL},
    {"a": {"b": 1}},
    [None],
    [10**400],
    [[10**400]],
    ["1"],
    "all_reduce",
]
CHANGES = st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(VALUES)), max_size=3)


def mutated(changes):
    records = copy.deepcopy(RECORDS)
    for place, value in changes:
        try:
            target = records
            for key in place[:-1]:
                target = target[key]
            target[place[-1]] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):  # an earlier change took it away
            continue
    return "".join(json.dumps(record) + "\n" for record in records)


def write(path, changes):
    """A new file: of one that is overwritten, ext4 waits for the disk."""
    path.unlink(missing_ok=True)
    path.write_text(mutated(changes))


def check(text):
    assert all(c == "\n" or c.isprintable() for c in text)


def check_views(path):
    for view in VIEWS:
        out = io.StringIO()
        show(*load_all([path]), file=out, **view)
        check(out.getvalue())
    out = Terminal()
    show(load(path), file=out)
    check(out.text())


@given(CHANGES)
@settings(max_examples=30)
def test_a_mutated_file_is_shown_or_refused(tmp_path_factory, changes):
    path = tmp_path_factory.getbasetemp() / "mutated.jsonl"
    write(path, changes)
    try:
        load(path)
    except UnreadableError:
        return
    check_views(path)


@pytest.mark.parametrize("value", [None, 0, 10**400, EVIL, []], ids=lambda v: repr(v)[:9])
def test_each_field_with_each_value(tmp_path, value):
    path = tmp_path / "mutated.jsonl"
    for place in PLACES:
        write(path, [(place, value)])
        try:
            loaded = load(path)
        except UnreadableError:
            continue
        out = io.StringIO()
        show(loaded, file=out, columns="all")
        check(out.getvalue())


def test_every_text_of_a_file_is_on_one_line_and_without_control_characters(tmp_path, capsys):
    """Where a text is expected, and where it is a key."""
    records = copy.deepcopy(RECORDS)
    for record in records:
        for place in list(places(record)):
            target = record
            for key in place[:-1]:
                target = target[key]
            fixed = ("record", "schema", "collective", "connects", "kind")
            if isinstance(target[place[-1]], str) and place[-1] not in fixed:
                target[place[-1]] += EVIL
    path = tmp_path / f"a{EVIL}b.jsonl".replace("\n", "")
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + "{cut")
    check_views(path)
    for form in ("csv", "table"):
        assert main(["show", str(path), "--format", form]) == 0
        out, err = capsys.readouterr()
        check(out + err)


def test_a_file_that_claims_a_million_ranks_is_no_work(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text(mutated([((0, "ranks"), 1 << 40)]))
    with pytest.raises(UnreadableError):
        load(path)


def test_an_unusable_field_of_the_header_is_left_out_and_named(tmp_path, shown):
    path = tmp_path / "odd.jsonl"
    changes = [
        ((0, "spec", "labels"), {"a": 1, "b": "kept"}),
        ((0, "environment", "libraries"), [1]),
        ((0, "spec", "precision"), 10**400),
    ]
    path.write_text(mutated(changes))
    loaded = load(path)
    assert loaded.labels == {"b": "kept"}
    assert loaded.problems[:3] == [
        f"{path}:1: unusable field {name}" for name in ("precision", "libraries", "a")
    ]
    assert f"\n{path}:1: unusable field libraries\n" in shown(loaded)
