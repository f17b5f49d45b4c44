"""JSON that is read in pieces, and JSON that was cut off."""

from __future__ import annotations

import json

import pytest

from torchcoll.reading.large_json import decode, members

DATA = {"a": 12.5, "list": [{"x": [1, 2]}, "t]ext", -3, None], "é": {"b": []}, "none": [], "n": 123}


def pieces(text: str, length: int) -> list[bytes]:
    data = text.encode()
    return [data[i : i + length] for i in range(0, len(data), length)]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("indent", [None, 1])
def test_members_of_an_object(length, indent):
    text = json.dumps(DATA, indent=indent, ensure_ascii=False)
    plain, items = {}, []
    for key, value, _, item in members(pieces(text, length), ("list", "none")):
        if item:
            items.append(value)
        else:
            plain[key] = value
    assert items == DATA["list"]
    assert plain == {**DATA, "list": []}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,}', '{"a":1}x', '{1:2}', '{"a":[1 2]}']
)  # fmt: skip
def test_what_is_none(text):
    with pytest.raises(ValueError):
        list(members(pieces(text, 3), ("a",)))


def test_an_empty_object():
    assert list(members([b" { } "], ())) == []


def test_what_was_cut_off_is_read_to_its_last_whole_row():
    whole = {"results": [{"size": 1, "t": "}"}, {"size": 2, "t": "["}]}
    text = json.dumps(whole)
    assert decode(text) == (whole, False)
    assert decode(text[:-2]) == (whole, True)
    assert decode(text[:-8]) == ({"results": whole["results"][:1]}, True)
    assert decode("no JSON") == (None, True)


def test_a_long_document_that_was_cut_off_takes_no_longer_for_it():
    """It was once decoded again for each of its last 10 000 rows."""
    text = '{"results":[' + '{"size":8},' * 200_000 + '"'
    data, cut = decode(text)
    assert cut and len(data["results"]) == 200_000
