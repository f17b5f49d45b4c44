"""Devices that are parts of one card: which ranks have the same, and whose state is read.

The inputs are what vendors and users have published: ROCm/rocm_smi_lib#208 (MI300A in TPX mode:
0001:02:00.0 to .2, which the PCI bus does not have), ROCm/legacy-rocm-build#4261 (a MI300 in TPX
mode: 0000:01:00.0 to .2), ROCm/rocm-systems#10740 (CPX, and NVIDIA's MLOPart with NCCL 2.30) and
#3977 (partitions with one UUID). torch has no PCI function: domain, bus and device alone.
"""

from types import SimpleNamespace

import pytest

from torchcoll.core.shared_cores import device_identity
from torchcoll.machine import gpu_state
from torchcoll.machine.devices import refuse_shared
from torchcoll.machine.environment import device_place
from torchcoll.machine.host_watch import Watch
from torchcoll.machine.placement import device_facts


def torch_with(kind, properties):
    """torch whose devices of this kind have these properties."""
    module = SimpleNamespace(
        get_device_properties=lambda index: SimpleNamespace(**properties[index])
    )
    return SimpleNamespace(**{kind: module})


def located(torch, kind, count):
    devices = [SimpleNamespace(kind=kind, name=f"{kind}:{index}") for index in range(count)]
    return [device_place(torch, device) for device in devices]


PCI = {"pci_domain_id": 0, "pci_bus_id": 5, "pci_device_id": 0}
MI300X = "AMD Instinct MI300X"
# The eight dies of one MI300X in CPX mode.
CPX = [
    {"name": MI300X, "uuid": f"62333539-3730-6566-3632-3034343663{n:02x}", **PCI} for n in range(8)
]
CPX_ALIKE = [{"name": MI300X, "uuid": "62333539-3730-6566-3632-303434366361", **PCI}] * 8
MLOPART = [
    {"name": "NVIDIA B300 SXM6 AC", "uuid": f"0d9b83b8-9e36-5d2d-a9a8-1a7a1d1c0f0{n}", **PCI}
    for n in range(2)
]


@pytest.mark.parametrize("properties", [CPX, CPX_ALIKE, MLOPART], ids=["CPX", "alike", "MLOPart"])
def test_partitions_of_a_card_are_devices_of_their_own(properties):
    devices = located(torch_with("cuda", properties), "cuda", len(properties))
    refuse_shared([("n1", identity) for _, identity in devices])
    assert {card for card, _ in devices} == {"0000:05:00.0"}, "its state is that of the card"


def test_slices_of_a_gpu_are_one_device():
    """NVIDIA's driver gives each MIG slice a UUID; NCCL connects no two slices of a GPU."""
    slices = [
        {"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "uuid": f"5c5b5d1e-{n}", **PCI}
        for n in (1, 2)
    ]
    (_, one), (_, other) = located(torch_with("cuda", slices), "cuda", 2)
    assert one == other == "0000:05:00.0"


@pytest.mark.parametrize(
    ("facts", "identity"),
    [
        ({"device_name": "NVIDIA H100", "uuid": "ab-cd", "pci_id": "0000:05:00.0"}, "ab-cd"),
        ({"device_name": "NVIDIA H100", "pci_id": "0000:05:00.0"}, "0000:05:00.0, cuda:1"),
        ({"device_name": "NVIDIA H100"}, None),
        ({}, None),
    ],
)
def test_the_identity_of_a_device(facts, identity):
    assert device_identity({"device": "cuda:1", **facts}) == identity


# intel/compute-runtime, Device::generateUuidFromPciBusInfo: 8086 and 0bd5 (a Data Center GPU Max),
# little-endian; revision 2f, domain 0, bus 3a, device 0, function 0; the last byte is the tile.
MAX_1550 = "8680d50b-2f00-0000-3a00-0000000000"


@pytest.mark.parametrize(
    ("uuid", "pci_id"),
    [
        (f"{MAX_1550}00", "0000:3a:00.0"),
        (f"{MAX_1550}02", "0000:3a:00.0"),
        ("8680d50b-2f00-0100-ca01-020000000001", "0001:ca:01.2"),
        # A UUID of the chip's serial number, and one of another vendor.
        ("0e0b70e6-1f7e-4a5c-8f2b-3a0000000001", None),
        ("8680d50b-2f00-0000-3a00-00ab00000001", None),
        ("GPU-1", None),
    ],
)
def test_the_pci_address_in_the_uuid_of_an_intel_gpu(uuid, pci_id):
    torch = torch_with("xpu", [{"name": "Intel(R) Data Center GPU Max 1550", "uuid": uuid}])
    assert device_facts(torch, "xpu:0")["pci_id"] == pci_id


def test_the_state_of_an_intel_gpu_is_that_of_its_card(tmp_path):
    """Two tiles, a rank on each: torch has UUIDs, sysfs the PCI address."""
    device, card = tmp_path / "devices/0000:3a:00.0", tmp_path / "class/drm/card1"
    for folder in (device, card / "gt/gt0"):
        folder.mkdir(parents=True)
    (card / "device").symlink_to(device)
    (card / "gt/gt0/rps_act_freq_mhz").write_text("900\n")
    (card / "gt/gt0/rps_RP0_freq_mhz").write_text("1600\n")
    (card / "gt/gt0/throttle_reason_thermal").write_text("1\n")
    tiles = [{"name": "Max 1550", "uuid": f"{MAX_1550}0{tile}"} for tile in (1, 2)]
    places = located(torch_with("xpu", tiles), "xpu", 2)
    refuse_shared([("n1", identity) for _, identity in places])
    watch = Watch("xpu", [card for card, _ in places], [1, 2], sysfs=str(tmp_path))
    (state,) = watch.before()["devices"]
    assert (state["place"], state["sm_clock_mhz"], state["sm_clock_max_mhz"]) == (
        "0000:3a:00.0",
        900,
        1600,
    )
    assert state["reasons"] == ["thermal"]


def amd_sysfs(folder, files):
    """As Documentation/gpu/amdgpu/thermal.rst of the kernel has it."""
    device, card = folder / "devices/pci0000:00/0000:05:00.0", folder / "class/drm/card1"
    (folder / "bus/pci/devices").mkdir(parents=True)
    card.mkdir(parents=True)
    device.mkdir(parents=True)
    (card / "device").symlink_to(device)
    (folder / "bus/pci/devices/0000:05:00.0").symlink_to(device)
    for name, text in {"vendor": "0x1002", **files}.items():
        path = device / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return str(folder)


STATE = {
    "gpu_busy_percent": 97,
    "pp_dpm_sclk": "0: 132Mhz\n1: 1205Mhz *\n2: 2100Mhz",
    "hwmon/hwmon3/temp1_input": 45000,
    "hwmon/hwmon3/temp2_input": 58000,
    "hwmon/hwmon3/power1_input": 142000000,
    "hwmon/hwmon3/power1_cap": 750000000,
}


@pytest.mark.parametrize(
    ("files", "values"), [(STATE, (97, 1205, 2100, 58, 142.0, 750.0)), ({}, (None,) * 6)]
)
def test_the_state_of_an_amd_gpu(tmp_path, files, values):
    (gpu,) = gpu_state.amd_gpus(["0000:05:00.0"], amd_sysfs(tmp_path, files))
    names = ("busy_percent", "sm_clock_mhz", "sm_clock_max_mhz", "temperature_c")
    assert tuple(gpu[name] for name in (*names, "power_w", "power_limit_w")) == values


def test_partitions_have_the_state_of_their_card(tmp_path):
    """Ranks on two partitions of a card: one state, and nothing that the kernel does not say."""
    watch = Watch("cuda", ["0000:05:00.0"] * 2, [1, 2], sysfs=amd_sysfs(tmp_path, STATE))
    (state,) = watch.before()["devices"]
    assert (state["busy_percent"], state["sm_clock_mhz"]) == (97, 1205)
    assert state["others"] is None and "reasons" not in state
