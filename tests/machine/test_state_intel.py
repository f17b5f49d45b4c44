"""Intel's GPUs: a small sysfs of each driver, and outputs of xpu-smi."""

import json

import pytest

from torchcoll.machine import gpu_state as intel

PLACE = "0000:3a:00.0"


@pytest.fixture
def sysfs(tmp_path):
    def write(files):
        device = tmp_path / "devices" / PLACE
        card = tmp_path / "class/drm/card1"
        (tmp_path / "class/drm/card1-DP-1").mkdir(parents=True)
        device.mkdir(parents=True)
        card.mkdir()
        (card / "device").symlink_to(device)
        for name, text in files.items():
            path = card / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return str(tmp_path)

    return write


I915 = {
    "gt/gt0/rps_act_freq_mhz": 900,
    "gt/gt0/rps_RP0_freq_mhz": 1600,
    "gt/gt0/throttle_reason_status": 1,
    "gt/gt0/throttle_reason_pl1": 1,
    "gt/gt0/throttle_reason_thermal": 0,
    "gt/gt1/rps_act_freq_mhz": 1550,
    "gt/gt1/rps_RP0_freq_mhz": 1600,
    "gt/gt1/throttle_reason_pl1": 1,
    "device/hwmon/hwmon4/energy1_input": 123456,
}
XE = {
    "device/tile0/gt0/freq0/act_freq": 2400,
    "device/tile0/gt0/freq0/rp0_freq": 2850,
    "device/tile0/gt0/freq0/throttle/status": 0,
    "device/tile0/gt0/freq0/throttle/reason_pl1": 0,
    "device/hwmon/hwmon4/temp2_input": 51000,
    "device/hwmon/hwmon4/temp3_input": 58000,
}


def nothing(command):
    return None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (I915, (1550, 1600, ["pl1"], None, 123456)),
        (XE, (2400, 2850, [], 58, None)),
        ({}, (None, None, None, None, None)),
    ],
)
def test_sysfs(sysfs, files, expected):
    (gpu,) = intel.intel_gpus([PLACE], sysfs(files), nothing)
    names = ("sm_clock_mhz", "sm_clock_max_mhz", "reasons", "temperature_c", "energy_uj")
    assert tuple(gpu[name] for name in names) == expected
    assert (gpu["place"], gpu["processes"]) == (PLACE, None)


def test_a_device_that_sysfs_does_not_have(tmp_path):
    (gpu,) = intel.intel_gpus([PLACE], str(tmp_path), nothing)
    assert gpu == {"place": PLACE, "index": 0, "processes": None}


def test_processes(tmp_path):
    """xpu-smi lists itself; its sizes are kB."""
    row = {"device_id": 0, "shared_mem_size": 0}
    listed = [
        {**row, "process_id": 768707, "process_name": "python", "mem_size": 5726404},
        {**row, "process_id": 5225, "process_name": "xpu-smi", "mem_size": 1507},
    ]
    asked = []

    def answer(command):
        asked.append(command)
        return json.dumps({"device_util_by_proc_list": listed})

    (gpu,) = intel.intel_gpus([PLACE], str(tmp_path), answer)
    assert gpu["processes"] == [{"pid": 768707, "name": "python", "size_bytes": 5_726_404_000}]
    assert asked == [["xpu-smi", "ps", "-d", PLACE, "-j"]]


@pytest.mark.parametrize("text", ["", "Error: no", '{"error": "Device not found"}', "[1]"])
def test_an_answer_that_is_none(tmp_path, text):
    (gpu,) = intel.intel_gpus([PLACE], str(tmp_path), lambda command: text)
    assert gpu["processes"] is None


def test_the_real_command(tmp_path, monkeypatch):
    """A command that works, one that fails, one that hangs, and one that does not exist."""
    command = tmp_path / "xpu-smi"
    for script, timeout_s, expected in (
        ("echo '{\"device_util_by_proc_list\": []}'", 60, []),
        ("echo '{\"device_util_by_proc_list\": []}'; exit 1", 60, None),
        ("exec sleep 60", 0.1, None),
    ):
        monkeypatch.setattr(intel, "_XPU_SMI_S", timeout_s)
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        (gpu,) = intel.intel_gpus([PLACE], str(tmp_path))
        assert gpu["processes"] == expected
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    (gpu,) = intel.intel_gpus([PLACE], str(tmp_path))
    assert gpu["processes"] is None
