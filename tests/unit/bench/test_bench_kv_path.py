"""Counters of RDMA ports, from a folder such as the kernel's."""

import sys
from types import ModuleType

import pytest
from llmd_base.errors import KitError
from llmd_pods import kv_path
from llmd_pods.kv_path import PATTERN, BufferTransfer, Endpoint, Reads, measure, nixl, pytorch
from nixl_stand_in import Memory, api_of, nixlRemoteDisconnectError, ticking, torch_of


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


def test_rdma_counters_are_named_by_device_port_and_sysfs_folder(sysfs):
    result = kv_path.read_counters(sysfs)
    assert result["mlx5_3/1/counters/port_rcv_data"] == 1000
    assert result["mlx5_3/1/hw_counters/packet_seq_err"] == 0


def test_unreadable_rdma_counters_are_omitted(sysfs):
    assert "mlx5_3/1/counters/port_xmit_wait" not in kv_path.read_counters(sysfs)


def test_a_pod_without_rdma_ports_has_no_rdma_counters(tmp_path):
    assert kv_path.read_counters(tmp_path / "infiniband") == {}


def test_rdma_data_counters_count_words_of_four_bytes():
    before = {"a/1/counters/port_rcv_data": 100, "b/1/counters/port_rcv_data": 0, "a/1/counters/port_xmit_data": 5}
    after = {"a/1/counters/port_rcv_data": 350, "b/1/counters/port_rcv_data": 50, "a/1/counters/port_xmit_data": 6}
    grown = kv_path.increase(before, after)
    assert kv_path.received_bytes(grown) == 4 * (250 + 50)


def test_an_rdma_counter_that_was_reset_is_ignored():
    assert kv_path.increase({"a": 100}, {"a": 3, "b": 7}) == {}


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
def test_received_bytes_are_counted_only_by_ports_present_at_both_readings(before, after, tells):
    assert kv_path.counts_received_bytes(before, after) is tells


PIECES = BufferTransfer(descriptor_bytes=1024, descriptors=4)
READS = Reads(PIECES, repeats=2, warm_ups=1, limit_s=60)


def sides(buffer_bytes=4096, **changes):
    memory = Memory()
    api, torch = api_of(memory, **changes), torch_of(memory)
    return (
        Endpoint("prefill", buffer_bytes, PATTERN, api, torch),
        Endpoint("decode", 4096, 0, api, torch),
        api,
    )


def measured(prefill, decode):
    clock = ticking()
    return measure(decode, prefill.region, READS, clock=lambda: next(clock))


def test_a_nixl_read_by_decode_transfers_the_bytes_of_prefill():
    prefill, decode, _ = sides()
    assert decode.ends(4096) == (0, 0)
    measured(prefill, decode)
    assert decode.ends(4096) == (PATTERN, PATTERN)


def test_a_nixl_read_is_timed_from_its_post_to_its_end():
    """The clock goes on by 0.25 s whenever it is asked: at the post, once while the read goes on, and at its end."""
    prefill, decode, _ = sides()
    assert measured(prefill, decode) == (0.5, 0.5)


def test_warm_up_reads_of_the_nixl_link_test_are_not_timed():
    prefill, decode, _ = sides()
    assert len(measured(prefill, decode)) == READS.repeats


def test_nixl_transfer_handles_are_released():
    prefill, decode, _ = sides()
    measured(prefill, decode)
    assert len(decode._agent.released) == 1


def test_a_closed_nixl_endpoint_has_no_registered_memory():
    prefill, _, _ = sides()
    prefill.close()
    assert prefill._agent.registered == []


def test_a_nixl_transfer_that_reports_success_without_data_is_detected():
    prefill, decode, _ = sides(moves=False)
    with pytest.raises(KitError, match="the bytes at its ends are 0 and 0"):
        measured(prefill, decode)


def test_a_failed_nixl_read_raises_an_error():
    lost = nixlRemoteDisconnectError("NIXL_ERR_REMOTE_DISCONNECT")
    prefill, decode, _ = sides(states=("PROC", lost))
    with pytest.raises(KitError, match="when it read: nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT"):
        measured(prefill, decode)


def test_a_nixl_read_that_ends_in_an_error_state_raises_an_error():
    prefill, decode, _ = sides(states=("PROC", "ERR"))
    with pytest.raises(KitError, match="state ERR"):
        measured(prefill, decode)


def test_a_buffer_that_nixl_cannot_register_raises_an_error():
    with pytest.raises(KitError, match="buffer were set up: nixlBackendError: NIXL_ERR_BACKEND"):
        sides(most_bytes=100)


def test_metadata_that_nixl_cannot_parse_raises_an_error():
    prefill, decode, _ = sides()
    with pytest.raises(KitError, match="metadata were loaded: nixlMismatchError"):
        decode.meet(prefill.region.model_copy(update={"metadata": "00"}))


def test_a_nixl_read_of_memory_that_is_no_longer_registered_raises_an_error():
    prefill, decode, _ = sides()
    region = prefill.region
    prefill.close()
    with pytest.raises(KitError, match="a read of 4096 bytes was prepared: nixlNotFoundError"):
        measure(decode, region, READS, clock=lambda: 0.0)


def test_closing_a_nixl_endpoint_twice_is_no_error():
    prefill, _, _ = sides()
    prefill.close()
    prefill.close()


def test_a_nixl_read_that_hangs_is_abandoned_after_a_time_limit():
    prefill, decode, _ = sides(states=("PROC",) * 1000)
    with pytest.raises(KitError, match="did not end within"):
        measured(prefill, decode)


def test_a_nixl_buffer_smaller_than_the_requested_read_is_refused():
    prefill, decode, _ = sides(buffer_bytes=1024)
    with pytest.raises(KitError, match="1024 bytes, 4096 are asked for"):
        measured(prefill, decode)


def test_a_nixl_without_ucx_is_refused():
    memory = Memory()
    with pytest.raises(KitError, match="no UCX here: POSIX"):
        Endpoint("prefill", 4096, PATTERN, api_of(memory, plugins=("POSIX",)), torch_of(memory))


def test_the_first_installed_nixl_package_is_used(monkeypatch):
    package, module = ModuleType("rixl"), ModuleType("rixl._api")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "rixl", package)
    monkeypatch.setitem(sys.modules, "rixl._api", module)
    assert nixl() == ("rixl", module)


def test_an_image_without_nixl_raises_an_error():
    with pytest.raises(KitError, match="The image has no NIXL"):
        nixl()


def test_a_pod_without_a_gpu_raises_an_error(monkeypatch):
    torch = ModuleType("torch")
    torch.cuda = type("cuda", (), {"is_available": staticmethod(lambda: False)})
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(KitError, match="sees no GPU"):
        pytorch()
