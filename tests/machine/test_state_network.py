from torchcoll.machine import host_watch


def write(root, files):
    for name, text in files.items():
        path = root / "class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return str(root)


def test_ports_of_infiniband_and_interfaces(tmp_path):
    files = {
        "infiniband/mlx5_0/ports/1/counters/symbol_error": 3,
        "infiniband/mlx5_0/ports/1/counters/link_downed": 0,
        "infiniband/mlx5_0/ports/1/counters/port_xmit_data": 999,  # traffic is no concern here
        "infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence": 7,
        "infiniband/mlx5_1/ports/2/counters/symbol_error": "N/A",
        "net/eth0/statistics/rx_errors": 1,
        "net/eth0/statistics/rx_bytes": 5,
        "net/eth0/type": 1,
        "net/eth0/device/vendor": "0x15b3",
        "net/docker0/statistics/rx_errors": 2,
        "net/docker0/type": 1,
        "net/bonding_masters": "bond0",
    }
    assert host_watch.counters(write(tmp_path, files)) == {
        "mlx5_0 port 1": {"symbol_error": 3, "link_downed": 0, "out_of_sequence": 7},
        "eth0": {"rx_errors": 1},
    }


def test_in_a_container_no_interface_is_a_device(tmp_path):
    files = {
        "net/eth0/statistics/tx_errors": 4,
        "net/eth0/type": 1,
        "net/lo/statistics/tx_errors": 5,
        "net/lo/type": 772,
    }
    assert host_watch.counters(write(tmp_path, files)) == {"eth0": {"tx_errors": 4}}


def test_without_sysfs(tmp_path):
    assert host_watch.counters(str(tmp_path)) == {}
