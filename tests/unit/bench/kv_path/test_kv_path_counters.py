"""Counters of RDMA ports, from a folder such as the kernel's."""

import pytest
from llmd_oke.bench.kv_path import counters


@pytest.fixture(name="sysfs")
def sysfs_fixture(tmp_path):
    for name, value in {"port_rcv_data": "1000", "port_xmit_data": "10", "port_xmit_wait": "N/A"}.items():
        file = tmp_path / "mlx5_3" / "ports" / "1" / "counters" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    hardware = tmp_path / "mlx5_3" / "ports" / "1" / "hw_counters"
    hardware.mkdir()
    (hardware / "packet_seq_err").write_text("0\n")
    return tmp_path


def test_counters_are_named_by_device_port_and_group(sysfs):
    found = counters.read_counters(sysfs)
    assert found["mlx5_3/1/counters/port_rcv_data"] == 1000
    assert found["mlx5_3/1/hw_counters/packet_seq_err"] == 0


def test_counters_that_can_not_be_read_are_left_out(sysfs):
    assert "mlx5_3/1/counters/port_xmit_wait" not in counters.read_counters(sysfs)


def test_a_pod_without_ports_has_no_counters(tmp_path):
    assert counters.read_counters(tmp_path / "infiniband") == {}


def test_data_counters_count_words_of_four_bytes():
    before = {"a/1/counters/port_rcv_data": 100, "b/1/counters/port_rcv_data": 0, "a/1/counters/port_xmit_data": 5}
    after = {"a/1/counters/port_rcv_data": 350, "b/1/counters/port_rcv_data": 50, "a/1/counters/port_xmit_data": 6}
    grown = counters.moved(before, after)
    assert counters.received_bytes(grown) == 4 * (250 + 50)
    assert counters.sent_bytes(grown) == 4


def test_a_counter_that_began_anew_tells_nothing():
    assert counters.moved({"a": 100}, {"a": 3, "b": 7}) == {}


@pytest.mark.parametrize(
    ("before", "after", "tells"),
    [
        ({"a/1/counters/port_rcv_data": 5}, {"a/1/counters/port_rcv_data": 5}, True),
        ({"a/1/counters/port_rcv_data": 5}, {"a/1/counters/port_rcv_data": 4}, False),
        ({}, {"a/1/counters/port_rcv_data": 5}, False),
        ({"a/1/counters/port_rcv_data": 5}, {}, False),
        ({"a/1/hw_counters/x": 5}, {"a/1/hw_counters/x": 9}, False),
    ],
)
def test_received_bytes_are_told_by_a_port_that_counted_them_all_the_while(before, after, tells):
    assert counters.tells_received_bytes(before, after) is tells


def test_only_trouble_is_called_trouble():
    grown = {
        "a/1/hw_counters/out_of_sequence": 2,
        "a/1/hw_counters/rx_read_requests": 9,
        "a/1/hw_counters/np_cnp_sent": 1,
    }
    assert counters.trouble(grown) == {"a/1/hw_counters/out_of_sequence": 2, "a/1/hw_counters/np_cnp_sent": 1}
