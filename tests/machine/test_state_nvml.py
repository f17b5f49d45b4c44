"""NVML with a table of answers; expected numbers by hand, names from nvml.h."""

from __future__ import annotations

import ctypes

from nvml_fake import FakeNvml

from torchcoll.machine import gpu_state

PLACE = "0000:1b:00.0"
UNKNOWN = 2**64 - 1

# Two of four links active, both to an NVSwitch; link 1 has met errors.
H200 = {
    "Index": 3,
    "UtilizationRates": {"gpu": 98, "memory": 41},
    ("ClockInfo", 1): 1980,
    ("MaxClockInfo", 1): 1981,
    ("ClockInfo", 2): 3201,
    ("MaxClockInfo", 2): 3202,
    "CurrentClocksEventReasons": 0x4 | 0x20,
    ("ViolationStatus", 0): {"reference_us": 9, "violation_ns": 7_000_000},
    ("ViolationStatus", 1): {"reference_us": 9, "violation_ns": 0},
    ("TotalEccErrors", 0, 0): 5,
    ("TotalEccErrors", 1, 0): 1,
    ("Temperature", 0): 64,
    "PowerUsage": 612_500,
    "EnforcedPowerLimit": 700_000,
    "PersistenceMode": 1,
    "ComputeRunningProcesses_v3": [(4711, 36_721_970_381), (4712, UNKNOWN)],
    **{("NvLinkState", link): active for link, active in enumerate([1, 1, 0, 0])},
    ("NvLinkRemoteDeviceType", 0): 2,
    ("NvLinkRemoteDeviceType", 1): 2,
    ("NvLinkErrorCounter", 0, 2): 0,
    ("NvLinkErrorCounter", 1, 2): 12,
}


def only(answers, device_id=PLACE, **options):
    library = FakeNvml({device_id: answers}, **options)
    (gpu,) = gpu_state.nvidia_gpus([device_id], library)
    assert library.open == 0  # shut down as often as initialised
    return gpu


def test_all_values_of_a_gpu():
    assert only(H200) == {
        "place": PLACE,
        "index": 3,
        "busy_percent": 98,
        "sm_clock_mhz": 1980,
        "sm_clock_max_mhz": 1981,
        "mem_clock_mhz": 3201,
        "mem_clock_max_mhz": 3202,
        "reasons": ["SW power cap", "SW thermal slowdown"],
        "limited_ns": {"power": 7_000_000, "thermal": 0, "board limit": None, "reliability": None},
        "ecc_corrected": 5,
        "ecc_uncorrected": 1,
        "temperature_c": 64,
        "power_w": 612.5,
        "power_limit_w": 700.0,
        "persistence": True,
        "processes": [
            {"pid": 4711, "size_bytes": 36_721_970_381},
            {"pid": 4712, "size_bytes": None},
        ],
        "nvlinks": 2,
        "nvlink_to": {"switch": 2},
        "nvlink_errors": {"crc_flit": {"0": 0, "1": 12}},
    }


def test_an_older_driver():
    """An older driver has the old name of the throttle reasons, and version 2 of the process
    call.
    """
    answers = {"CurrentClocksThrottleReasons": 0x1, "ComputeRunningProcesses_v2": [(8, 16)]}
    absent = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses_v3")
    gpu = only(answers, absent=absent)
    assert gpu["reasons"] == ["GPU idle"]
    assert gpu["processes"] == [{"pid": 8, "size_bytes": 16}]


def test_links_to_a_gpu_and_to_unknown_ends():
    answers = {("NvLinkState", 0): 1, ("NvLinkState", 5): 1, ("NvLinkRemoteDeviceType", 5): 0}
    assert only(answers)["nvlink_to"] == {"unknown": 1, "gpu": 1}
    assert only(answers)["nvlink_errors"] is None


def test_the_last_of_36_links():
    """As many as nvml.h (NVML_NVLINK_MAX_LINKS) of nvidia-ml-py 13.615 knows; 18 for long."""
    answers = {("NvLinkState", 35): 1, ("NvLinkRemoteDeviceType", 35): 2}
    assert only(answers)["nvlinks"] == 1
    assert only(answers)["nvlink_to"] == {"switch": 1}


def test_without_a_driver_without_the_device_and_without_an_answer():
    other_gpu = FakeNvml({"0000:2c:00.0": {}})
    refuses = FakeNvml({PLACE: H200}, init=9)  # NVML_ERROR_DRIVER_NOT_LOADED
    for library in (None, other_gpu, refuses):
        assert gpu_state.nvidia_gpus([PLACE], library) == [{"place": PLACE}]


def test_the_layout_of_the_structures():
    """As in nvml.h on a 64-bit machine: a pid is padded to the 8 bytes of the memory behind it."""
    assert ctypes.sizeof(gpu_state._Process) == 24
    assert gpu_state._Process.used.offset == 8
    assert ctypes.sizeof(gpu_state._Utilization) == 8
    assert ctypes.sizeof(gpu_state._Violation) == 16
