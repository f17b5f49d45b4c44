"""The warnings for two records of a host's state; the records are made by hand."""

import pytest

from torchcoll.machine.state import before, during, processes_text

PYTHON = {"pid": 4711, "name": "python", "user": "anna", "size_bytes": 36_721_970_381}  # 34.2 GiB
SMALL = {"pid": 9, "name": "dcgm", "user": None, "size_bytes": None}
HIDDEN = {"pid": None, "name": None, "size_bytes": None}


def state(cpu=None, network=None, **device):
    devices = [{"place": "0000:1b:00.0", "index": 3, **device}] if device else []
    return {"host": "node7", "cpu": cpu or {}, "devices": devices, "network": network or {}}


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (
            {"others": [PYTHON], "busy_percent": 98},
            "in use by python (pid 4711, anna, 34.2 GiB) before the run; 98 % busy",
        ),
        (
            {"others": [SMALL, PYTHON], "busy_percent": None},
            "in use by python (pid 4711, anna, 34.2 GiB) and 1 more before the run",
        ),
        ({"others": [HIDDEN]}, "in use by a process outside this container before the run"),
        ({"others": None, "busy_percent": 11}, "11 % busy before the run, by what cannot be seen"),
        ({"others": [], "busy_percent": 10}, None),  # the limit
        (
            {"reasons": ["GPU idle", "HW slowdown", "HW thermal slowdown"]},
            "throttled before the run (HW slowdown, HW thermal slowdown)",
        ),
        ({"reasons": ["GPU idle", "applications clocks setting", "sync boost"]}, None),
        ({"others": None, "busy_percent": None, "reasons": None}, None),  # unknown is no concern
    ],
)
def test_before(device, message):
    assert list(before(state(**device))) == ([f"GPU 3 of node7: {message}"] if message else [])


def test_inside_a_program_that_was_busy_itself():
    assert list(before(state(others=None, busy_percent=99), looks_busy=False)) == []
    (text,) = before(state(others=[PYTHON], busy_percent=99), looks_busy=False)
    assert text.endswith("before the run")


def test_a_gpu_without_a_number():
    (text,) = before(state(index=None, reasons=["pl1"]))
    assert text == "GPU 0000:1b:00.0 of node7: throttled before the run (pl1)"


LINKS = {"crc_flit": {"0": 5, "1": 5}, "replay": {"0": 0, "1": None}}


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        ({"others": [SMALL]}, {"others": [SMALL]}, None),  # it was told before
        (
            {"others": []},
            {"others": [PYTHON]},
            "in use by python (pid 4711, anna, 34.2 GiB) since the run began",
        ),
        # 3 of 10 s; thermal 0.05 s is below 1 %.
        (
            {"limited_ns": {"power": 10**9, "thermal": 0, "reliability": None}},
            {"limited_ns": {"power": 4 * 10**9, "thermal": 5 * 10**7, "reliability": 9**9}},
            "throttled during the run (power 30% of the time)",
        ),
        # A driver that counts in other units.
        (
            {"limited_ns": {"power": 0}},
            {"limited_ns": {"power": 10**15}},
            "throttled during the run (power 100% of the time)",
        ),
        (
            {"reasons": ["SW power cap"]},
            {"reasons": ["SW power cap", "SW thermal slowdown"]},
            "throttled at the end of the run (SW thermal slowdown)",
        ),
        (
            {"ecc_corrected": 4, "ecc_uncorrected": 1},
            {"ecc_corrected": 4, "ecc_uncorrected": 2},
            "1 uncorrected ECC error during the run",
        ),
        ({"ecc_corrected": 4}, {"ecc_corrected": 7}, "3 corrected ECC errors during the run"),
        ({"ecc_corrected": 4}, {"ecc_corrected": 0}, None),  # the counter was reset
        ({"ecc_corrected": None}, {"ecc_corrected": 9}, None),
        ({"nvlinks": 18}, {"nvlinks": 17}, "1 of 18 NVLinks lost during the run"),
        (
            {"nvlink_errors": LINKS},
            {"nvlink_errors": {"crc_flit": {"0": 5, "1": 17}, "replay": {"0": 1, "1": 9}}},
            "NVLink errors during the run: crc_flit +12 on link 1, replay +1 on link 0",
        ),
    ],
)
def test_during(first, last, message):
    concerns = list(during(state(**first), state({"seconds": 10.0}, **last), "cuda"))
    assert concerns == ([f"GPU 3 of node7: {message}"] if message else [])


def cores(others_cores, stolen=0.0, cores=16, seconds=10.0, busy=8.0):
    top = [{"pid": 4711, "name": "make", "user": "anna", "cores": 1.25}]
    shares = {"seconds": seconds, "cores": cores, "busy_cores": busy}
    return {**shares, "others_cores": others_cores, "stolen_cores": stolen, "processes": top}


@pytest.mark.parametrize(
    ("kind", "shares", "message"),
    [
        ("cpu", cores(1.6), None),  # the limit: 10 % of 16
        ("cpu", cores(1.61), "other processes used 1.6 of 16 cores, most of it make (anna)"),
        ("cpu", cores(2.5), "other processes used 2.5 of 16 cores, most of it make"),  # half of it
        ("cpu", cores(2.6), "other processes used 2.6 of 16 cores during the run"),
        ("cuda", cores(7.9), None),
        ("cuda", cores(9.0), "other processes used 9 of 16 cores during the run"),
        ("cpu", cores(1.61, seconds=0.4), None),  # too short to tell
        ("cpu", cores(None), None),
        ("cpu", cores(0.0, stolen=0.17), "CPU steal 1.1 % during the run"),
        ("cpu", cores(0.0, stolen=0.16), None),  # 2 % of 8
        ("cpu", cores(0.0, stolen=0.02, busy=0.1), None),
    ],
)
def test_cores(kind, shares, message):
    concerns = list(during(state(), state(shares), kind))
    assert len(concerns) == bool(message)
    assert not message or concerns[0].startswith(f"node7: {message}")


def test_heat():
    first = {"throttled_core": 5, "throttled_package": None}
    last = {"throttled_core": 8, "throttled_package": 4}
    concerns = list(during(state(first), state(last), "cpu"))
    assert concerns == ["node7: CPU core slowed by heat 3 times during the run"]


def test_ports():
    first = {"mlx5_0 port 1": {"symbol_error": 3, "link_downed": 0, "port_xmit_wait": 5}}
    first["eth0"] = {"rx_errors": 9, "rx_dropped": 1}
    last = {"mlx5_0 port 1": {"symbol_error": 15, "link_downed": 1, "port_xmit_wait": 500}}
    last["eth0"] = {"rx_errors": 2, "rx_dropped": 100}  # reset; frames for nobody
    last["eth1"] = {"rx_errors": 7}  # was not there before
    concerns = list(during(state(network=first), state(network=last), "cpu"))
    assert concerns == ["mlx5_0 port 1 of node7: symbol_error +12, link_downed +1 during the run"]


def test_a_process_with_few_lines():
    assert processes_text([{**SMALL, "name": None}]) == "a process (pid 9)"
