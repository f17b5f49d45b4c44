"""Which hosts have more ranks than cores."""

from __future__ import annotations

from torchcoll.core.plausibility import crowded


def member(host: str, affinity: str) -> dict:
    return {"host": host, "affinity": affinity}


def test_more_ranks_than_cores():
    share = "{} ranks share {} cores: times include waiting for a core"
    assert crowded([member("a", "0-1")] * 3) == [("a", share.format(3, 2))]
    assert crowded([member("a", "0-1")] * 2) == []
    assert crowded([member("a", "0-3"), *[member("b", "0,2")] * 3]) == [("b", share.format(3, 2))]
    # Ranks that are bound to cores of their own do not share.
    assert crowded([member("a", "0"), member("a", "1"), member("a", "2-3")]) == []
    assert crowded([member("a", "0"), member("a", "0")]) == [
        ("a", "2 ranks share 1 core: times include waiting for a core")
    ]
    assert crowded([member("a", "")] * 9) == []  # not Linux: unknown
    assert crowded([member("a", "0"), {"host": "a"}, {"host": "a", "affinity": None}]) == []
    for affinity in ("all", "-", "0-99999999999", "1-2-", "\u0663x"):  # edited by hand
        assert crowded([member("a", affinity)] * 9) == []
