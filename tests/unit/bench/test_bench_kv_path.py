"""Counters of RDMA ports, from a folder such as the kernel's."""

import itertools
import sys
from types import ModuleType

import pytest
from llmd_base.errors import KitError
from llmd_pods import kv_path
from llmd_pods.kv_path import PATTERN, BufferTransfer, Endpoint, Reads, measure, pytorch
from nixl_stand_in import Memory, api_of, nixlRemoteDisconnectError, torch_of


def test_readable_rdma_counters_are_named_by_device_port_and_sysfs_folder(tmp_path):
    assert kv_path.read_counters(tmp_path / "infiniband") == {}
    counted = {"counters/port_rcv_data": "1000", "counters/port_xmit_wait": "N/A", "hw_counters/packet_seq_err": "0"}
    for name, value in counted.items():
        file = tmp_path / "mlx5_3" / "ports" / "1" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    assert kv_path.read_counters(tmp_path) == {
        "mlx5_3/1/counters/port_rcv_data": 1000,
        "mlx5_3/1/hw_counters/packet_seq_err": 0,
    }


def test_rdma_data_counters_count_words_of_four_bytes_unless_they_were_reset():
    before = {"a/1/counters/port_rcv_data": 100, "b/1/counters/port_rcv_data": 0, "a/1/counters/port_xmit_data": 5}
    after = {"a/1/counters/port_rcv_data": 350, "b/1/counters/port_rcv_data": 50, "a/1/counters/port_xmit_data": 6}
    grown = kv_path.increase(before, after)
    assert kv_path.received_bytes(grown) == 4 * (250 + 50)
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
    return (Endpoint("prefill", buffer_bytes, PATTERN, api, torch), Endpoint("decode", 4096, 0, api, torch), api)


def measured(prefill, decode):
    return measure(decode, prefill.region, READS, clock=itertools.count(step=0.25).__next__)


def test_a_nixl_read_transfers_prefills_bytes_is_timed_and_releases_its_handles():
    """The clock goes on by 0.25 s whenever it is asked: at the post, once while the read goes on, and at its end."""
    prefill, decode, _ = sides()
    assert decode.ends(4096) == (0, 0)
    assert measured(prefill, decode) == (0.5, 0.5)
    assert decode.ends(4096) == (PATTERN, PATTERN)
    assert len(decode._agent.released) == 1


def test_a_nixl_endpoint_that_is_closed_twice_has_no_registered_memory():
    prefill, _, _ = sides()
    prefill.close()
    prefill.close()
    assert prefill._agent.registered == []


LOST = nixlRemoteDisconnectError("NIXL_ERR_REMOTE_DISCONNECT")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"moves": False}, "the bytes at its ends are 0 and 0"),
        ({"states": ("PROC", LOST)}, "when it read: nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT"),
        ({"states": ("PROC", "ERR")}, "state ERR"),
        ({"states": ("PROC",) * 1000}, "did not end within"),
        ({"buffer_bytes": 1024}, "1024 bytes, 4096 are asked for"),
    ],
    ids=["success without data", "failure", "error state", "hangs", "smaller buffer"],
)
def test_a_nixl_read_without_the_bytes_of_prefill_raises_an_error(changes, said):
    prefill, decode, _ = sides(**changes)
    with pytest.raises(KitError, match=said):
        measured(prefill, decode)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plugins": ("POSIX",)}, "no UCX here: POSIX"),
        ({"most_bytes": 100}, "buffer were set up: nixlBackendError: NIXL_ERR_BACKEND"),
    ],
)
def test_a_nixl_without_ucx_or_that_cannot_register_a_buffer_is_refused(changes, said):
    with pytest.raises(KitError, match=said):
        sides(**changes)


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


def test_a_pod_without_a_gpu_raises_an_error(monkeypatch):
    torch = ModuleType("torch")
    torch.cuda = type("cuda", (), {"is_available": staticmethod(lambda: False)})
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(KitError, match="sees no GPU"):
        pytorch()
