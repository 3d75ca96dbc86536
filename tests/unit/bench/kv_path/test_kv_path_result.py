"""What a path's figures and counters say, computed by hand."""

import pytest
from llmd_oke.bench.kv_path.measuring import Timed, Timings
from llmd_oke.bench.kv_path.request import KvPathRequest, Transfer
from llmd_oke.bench.kv_path.result import Carried, Report, as_json, path_of

TRANSFER = Transfer(tokens=4096, descriptor_bytes=40_000_000, descriptors=10)
REQUEST = KvPathRequest("llm-d", "kv-path-1", (TRANSFER,), repeats=3, warm_ups=1, limit_s=60)
TIMINGS = Timings(first_s=4.2, timed=(Timed(transfer=TRANSFER, seconds=(0.01, 0.02, 0.008)),))
DATA = "mlx5_3/1/counters/port_rcv_data"
CARRIED = Carried(least_share=0.9, most_share=1.2)


def path(received_bytes=None, **grown):
    """400 MB are read four times: 1.6 GB."""
    after = {**({} if received_bytes is None else {DATA: received_bytes // 4}), **grown}
    reports = [
        Report(side=side, node=f"node-{side}", package="rixl", before=dict.fromkeys(after, 0), after=after)
        for side in ("prefill", "decode")
    ]
    return path_of(REQUEST, reports[0], reports[1].model_copy(update={"timings": TIMINGS}), CARRIED)


def test_a_rate_is_that_of_the_median():
    (figure,) = path().figures
    assert (figure.gb_per_s, figure.least_gb_per_s, figure.milliseconds) == (40.0, 20.0, 10.0)


@pytest.mark.parametrize(
    ("received_bytes", "verdict", "missed"),
    [
        (1_650_000_000, "carried by RDMA ports", False),
        (100_000_000, "NOT carried by RDMA ports: they received 6% of it", True),
        (None, "no RDMA port that counts bytes was seen", False),
        (8_000_000_000, "not known: RDMA ports received 5.0 times of it", False),
    ],
)
def test_the_ports_tell_what_carried_the_cache(received_bytes, verdict, missed):
    found = path(received_bytes)
    assert verdict in found.verdict
    assert found.missed is missed


def test_ports_that_count_no_bytes_do_not_tell_what_carried_the_cache():
    found = path(None, **{"mlx5_3/1/hw_counters/packet_seq_err": 0})
    assert found.carried_share is None
    assert not found.missed
    assert "what carried it is not known" in found.verdict


def test_trouble_of_both_sides_is_told():
    found = path(1_600_000_000, **{"mlx5_3/1/hw_counters/packet_seq_err": 3})
    assert found.trouble == {f"{side} mlx5_3/1/hw_counters/packet_seq_err": 3 for side in ("prefill", "decode")}


def test_the_first_read_stands_alone():
    assert path().first_ms == 4200.0


def test_plain_data_has_the_verdict_and_the_basis():
    found = as_json(path(1_600_000_000))
    assert (found["basis"], found["verdict"]) == ("measured", "carried by RDMA ports")
    assert found["figures"][0]["gb_per_s"] == 40.0
    assert found["carried"] == {"least_share": 0.9, "most_share": 1.2}


def test_a_side_without_timings_is_no_decode_side():
    report = Report(side="prefill", node="n", package="rixl", before={}, after={})
    with pytest.raises(ValueError, match="measured nothing"):
        path_of(REQUEST, report, report, CARRIED)
