"""Which hosts have more ranks than cores, or ranks that see one GPU each."""

from __future__ import annotations

from torchcoll.core.shared_cores import hosts_with_isolated_gpus, oversubscribed_hosts


def member(host: str, affinity: str) -> dict:
    return {"host": host, "affinity": affinity}


def test_more_ranks_than_cores():
    share = "{} ranks share {} cores: times include waiting for a core"
    assert oversubscribed_hosts([member("a", "0-1")] * 3) == [("a", share.format(3, 2))]
    assert oversubscribed_hosts([member("a", "0-1")] * 2) == []
    assert oversubscribed_hosts([member("a", "0-3"), *[member("b", "0,2")] * 3]) == [
        ("b", share.format(3, 2))
    ]
    # Ranks that are bound to cores of their own do not share.
    assert oversubscribed_hosts([member("a", "0"), member("a", "1"), member("a", "2-3")]) == []
    assert oversubscribed_hosts([member("a", "0"), member("a", "0")]) == [
        ("a", "2 ranks share 1 core: times include waiting for a core")
    ]
    assert oversubscribed_hosts([member("a", "")] * 9) == []  # not Linux: unknown
    assert (
        oversubscribed_hosts([member("a", "0"), {"host": "a"}, {"host": "a", "affinity": None}])
        == []
    )
    for affinity in ("all", "-", "0-99999999999", "1-2-", "\u0663x"):  # edited by hand
        assert oversubscribed_hosts([member("a", affinity)] * 9) == []


def on_gpu(host: str, pci_id: str | None, device: str = "cuda:0", **changed: str) -> dict:
    return {"host": host, "device": device, "pci_id": pci_id, **changed}


def test_ranks_that_see_one_gpu_each():
    """What srun --gpus-per-task leaves: each rank's own GPU is its cuda:0."""
    first, second = "0000:01:00.0", "0000:41:00.0"
    ((host, text),) = hosts_with_isolated_gpus([on_gpu("a", first), on_gpu("a", second)])
    assert host == "a" and text.startswith("each of 2 ranks sees its own GPU alone (srun --gpus-p")
    assert "NVIDIA/nccl#1066" in text and text.endswith("--gpu-bind=none, shows all to each")
    assert [
        h
        for h, _ in hosts_with_isolated_gpus(
            [on_gpu("a", None, uuid="x"), on_gpu("a", None, uuid="y")]
        )
    ] == ["a"]
    assert (
        hosts_with_isolated_gpus([on_gpu("a", first), on_gpu("a", second, "cuda:1")]) == []
    )  # all see all
    assert (
        hosts_with_isolated_gpus([on_gpu("a", first), on_gpu("b", second)]) == []
    )  # a rank a host
    assert hosts_with_isolated_gpus([on_gpu("a", first)] * 2) == []  # a rehearsal
    assert hosts_with_isolated_gpus([on_gpu("a", None)] * 2) == []  # nobody tells
    assert hosts_with_isolated_gpus([{"host": "a", "device": "cpu"}] * 2) == []
    named = [on_gpu("a", place, device_name="AMD Instinct MI300X") for place in (first, second)]
    assert hosts_with_isolated_gpus(named) == []
