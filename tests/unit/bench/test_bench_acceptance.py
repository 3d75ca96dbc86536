import json
from dataclasses import replace

import pytest
from llmd_pods.acceptance import (
    CheckResult,
    LinkRate,
    NodeGpu,
    NodeReport,
    NodeRequirements,
    NodeResult,
    PairMeasurement,
    Port,
    judge_disks,
    judge_gpus,
    judge_locality,
    judge_matrix_products,
    judge_memory,
    judge_ports,
    judge_rounds,
    missing_tools,
    read_gpus,
    read_ports,
    report_from_json,
    result_from_json,
    tournament,
    verdict_of,
)
from llmd_pods.node_speed import GpuSpeed

LIMITS = NodeRequirements(
    gpus=8,
    virtual_functions=8,
    gid_index=3,
    mtu_bytes=4220,
    link_gb_per_s=40.0,
    all_reduce_gb_per_s=350.0,
    all_reduce_alone_gb_per_s=310.0,
    least_carried_share=0.9,
    memory_gb_per_s=3710.0,
    matrix_tflops=523.0,
    disks=2,
    disk_bytes=1000,
    disk_gb_per_s=2.0,
)
GID = "0000:0000:0000:0000:0000:ffff:0ae0:0539"
"""Of 10.224.5.57, as oci-hpc-oke's docs/running-ib-write-bw-test.md has it."""


def list_json(count=8):
    """Output of `amd-smi list --json` as ROCm/amdsmi documents it: one entry for each GPU."""
    places = [{"gpu": i, "bdf": f"0000:{16 + i:02X}:00.0", "node_id": 2 + i} for i in range(count)]
    return json.dumps([{**place, "uuid": "u", "kfd_id": 1, "partition_id": 0} for place in places])


def ecc_items(count=8, **uncorrectable):
    """Output of `amd-smi metric --ecc --json` (ROCm/amdsmi, CHANGELOG: counts of ECC errors)."""
    others = ("total_correctable", "total_deferred", "cache_correctable", "cache_uncorrectable")
    counts = {f"{kind}_count": 0 for kind in others}
    return [
        {"gpu": i, "ecc": {**counts, "total_uncorrectable_count": uncorrectable.get(f"gpu{i}", 0)}}
        for i in range(count)
    ]


def port(number, **changes):
    values = {
        "device": f"mlx5_{number}",
        "socket": number // 4,
        "state": "4: ACTIVE",
        "physical_state": "5: LinkUp",
        "gid": GID,
        "gid_type": "RoCE v2",
        "interface": f"net{number + 1}",
        "mtu_bytes": 4220,
    }
    return Port(**{**values, **changes})


PORTS = tuple(port(number) for number in range(8))
GPUS = tuple(NodeGpu(number, f"0000:{16 + number:02x}:00.0", number // 4, 0) for number in range(8))


@pytest.mark.parametrize("wrapped", [False, True])
def test_gpus_are_parsed_from_both_forms_of_amd_smis_json(wrapped):
    items = ecc_items(gpu3=2)
    gpus = read_gpus(list_json(), json.dumps({"gpu_data": items} if wrapped else items))
    assert [gpu.uncorrectable_errors for gpu in gpus] == [0, 0, 0, 2, 0, 0, 0, 0]
    assert gpus[1].address == "0000:11:00.0"


def test_error_counts_that_a_gpu_does_not_report_are_unknown():
    (gpu,) = read_gpus(list_json(1), json.dumps(ecc_items(1, gpu0="N/A")))
    assert gpu.uncorrectable_errors is None
    assert judge_gpus([gpu], replace(LIMITS, gpus=1)).outcome == "passed"


@pytest.mark.parametrize("text", ["", "[]x", '{"other": 1}', '[{"gpu": 0}]', "7"])
def test_unexpected_output_of_amd_smi_raises_an_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own errors among them
        read_gpus(text, text)


def failed(check, text):
    return CheckResult(check, "failed", text)


def test_acceptance_fails_a_node_with_a_missing_gpu_or_one_with_memory_errors():
    assert judge_gpus(GPUS[:7], LIMITS) == failed("gpus", "amd-smi sees 7 of 8 GPUs")
    faulty = (*GPUS[:7], replace(GPUS[7], uncorrectable_errors=3))
    assert judge_gpus(faulty, LIMITS) == failed("gpus", "GPU 7 (0000:17:00.0) has 3 uncorrectable memory errors")


def test_rdma_ports_are_read_from_sysfs_with_the_expected_gid_or_an_empty_one(tmp_path):
    for item in PORTS:
        port_files = tmp_path / "class/infiniband" / item.device / "ports/1"
        files = {
            port_files.parents[1] / "device/numa_node": item.socket,
            port_files / "state": item.state,
            port_files / "phys_state": item.physical_state,
            port_files / "gids/3": item.gid,
            port_files / "gid_attrs/types/3": item.gid_type,
            port_files / "gid_attrs/ndevs/3": item.interface,
            tmp_path / "class/net" / item.interface / "mtu": item.mtu_bytes,
        }
        for file, value in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
    assert read_ports(tmp_path, 3) == PORTS
    unset = {"gid": "", "gid_type": "", "interface": "", "mtu_bytes": None}
    assert read_ports(tmp_path, 1) == tuple(port(number, **unset) for number in range(8))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"state": "1: DOWN", "physical_state": "3: Disabled"}, "mlx5_2: state 1: DOWN (3: Disabled)"),
        ({"gid_type": "IB/RoCE v1"}, f"mlx5_2: GID 3 is {GID} (IB/RoCE v1), not RoCE v2 over IPv4"),
        ({"gid": "fe80:0000:0000:0000:0000:0000:0000:0001"}, "not RoCE v2 over IPv4"),
        ({"gid": "", "gid_type": ""}, "mlx5_2: GID 3 is no GID (no type), not RoCE v2 over IPv4"),
        ({"mtu_bytes": 1500}, "mlx5_2: MTU of net3 is 1500, not 4220"),
    ],
)
def test_acceptance_names_an_rdma_port_with_a_wrong_state_gid_or_mtu(changes, text):
    result = judge_ports([*PORTS[:2], port(2, **changes), *PORTS[3:]], LIMITS)
    assert result.outcome == "failed"
    assert text in result.text


def test_acceptance_fails_a_node_with_a_missing_virtual_function():
    assert judge_ports(PORTS[1:], LIMITS).text == "7 of 8 virtual functions are in the pod"
    shared = judge_ports([*PORTS, PORTS[0]], LIMITS).text
    assert shared == "9 RDMA devices are in a pod of 8: network namespaces share them (netns_mode=0)"


def test_acceptance_passes_rdma_ports_in_the_expected_state_whether_mtu_is_known():
    assert judge_ports(PORTS, LIMITS).text == "8 ports up, GID 3 RoCE v2, MTU 4220"
    result = judge_ports(PORTS, replace(LIMITS, mtu_bytes=0))
    assert (result.outcome, "MTU not judged" in result.text) == ("passed", True)


def test_acceptance_fails_a_known_cpu_socket_with_fewer_rdma_ports_than_gpus():
    result = judge_locality(GPUS, (*PORTS[:7], port(7, socket=0)))
    assert result.text == "socket 0: 4 GPUs, 5 ports; socket 1: 4 GPUs, 3 ports"
    assert judge_locality(GPUS, (*PORTS[:7], port(7, socket=None))).outcome == "not run"


@pytest.mark.parametrize("count", range(2, 10))
def test_link_tests_pair_each_two_nodes_once_and_a_node_only_once_in_each_round(count):
    rounds = tournament(range(count), 100)
    for pairs in rounds:
        players = [player for pair in pairs for player in pair]
        assert len(players) == len(set(players)) == count - count % 2
    pairs = [pair for pairs in rounds for pair in pairs]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2


def test_a_single_node_is_paired_with_itself_and_many_for_a_limited_number_of_rounds():
    assert tournament([4], 8) == [[(4, 4)]]
    assert len(tournament(range(100), 8)) == 8


def report(node, *rounds):
    return NodeReport(node, "10.0.0.1", ready=True, over=True, rounds=rounds)


def links(rates, share=1.0):
    return tuple(LinkRate(gpu, rate, share, (f"mlx5_{gpu}",)) for gpu, rate in enumerate(rates))


GOOD = (44.0,) * 8
SLOW = (44.0, 44.0, 11.2, *GOOD[3:])


def judged(*reports, limits=LIMITS):
    results = judge_rounds(reports, limits, ("links", "all-reduce"))
    return {node: {check.name: check for check in checks} for node, checks in results.items()}


def both(rates, all_reduce):
    return [report(node, PairMeasurement(other, rates, all_reduce)) for node, other in ("ab", "ba")]


def test_acceptance_passes_nodes_with_fast_links_and_a_fast_all_reduce():
    results = judged(*both(links(GOOD), 356.0))
    assert {check.outcome for checks in results.values() for check in checks.values()} == {"passed"}
    assert results["a"]["all-reduce"].text == "356 of at least 350 GB/s with b"


def test_of_three_nodes_only_one_whose_links_to_both_others_are_slow_fails():
    """Whoever reads from it is slow too, but for that both have another partner."""
    results = judged(
        report("a", PairMeasurement("b", links(SLOW), 90.0), PairMeasurement("c", links(GOOD), 356.0)),
        report("b", PairMeasurement("a", links(SLOW), 90.0), PairMeasurement("c", links(SLOW), 90.0)),
        report("c", PairMeasurement("a", links(GOOD), 356.0), PairMeasurement("b", links(SLOW), 90.0)),
    )
    outcomes = {node: [check.outcome for check in checks.values()] for node, checks in results.items()}
    assert outcomes == {"a": ["passed", "passed"], "b": ["failed", "failed"], "c": ["passed", "passed"]}
    assert results["b"]["links"].text == "GPU 2 (mlx5_2): 11.2 of at least 40 GB/s at best, with a"


def test_both_of_two_nodes_with_a_slow_link_or_one_without_rdma_fail_acceptance():
    slow = judged(*both(links(SLOW), 90.0))
    assert {node: checks["links"].outcome for node, checks in slow.items()} == {"a": "failed", "b": "failed"}
    by_tcp = judged(*both(links(GOOD, 0.02), 356.0))
    assert "GPU 0: RDMA ports carried 2% of what was read (TCP?)" in by_tcp["a"]["links"].text


def test_the_all_reduce_of_a_single_node_is_judged_by_the_limit_for_one_node():
    alone = judged(report("a", PairMeasurement("a", (), 320.0)))["a"]
    assert alone["links"].outcome == "not run"
    assert alone["all-reduce"] == CheckResult("all-reduce", "passed", "320 of at least 310 GB/s in the node alone")


def test_a_node_that_does_not_come_to_a_link_test_is_reported_in_both_nodes_results():
    results = judged(report("a", PairMeasurement("b", problem="waited 300 s for it")), report("b"))
    assert results["a"]["links"].text == "with b: waited 300 s for it"
    assert results["b"]["all-reduce"].text == "its pod did not come to it in time"


def test_a_tool_missing_in_the_image_is_reported_once_and_fails_no_node():
    check = CheckResult("gpus", "no tool", "the image has no amd-smi")
    reports = [NodeReport(node, checks=(check,), ready=True) for node in "ab"]
    assert missing_tools(reports) == ["the image has no amd-smi"]
    assert verdict_of([check]) == "passed"
    assert not reports[0].sound


def test_acceptance_reports_and_results_are_read_back_from_json():
    told = report("a", PairMeasurement("b", links(SLOW), 90.0))
    kept = NodeResult("a", "uid", "failed", "2026-11-23T02:00:00Z", "vllm", (failed("gpus", "x"),), "gpus: x")
    assert report_from_json(told.to_json()) == told
    assert result_from_json(kept.to_json()) == kept


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"checks": 1}'])
def test_texts_that_are_no_acceptance_reports_or_results_are_refused(text):
    for read in (report_from_json, result_from_json):
        with pytest.raises(ValueError):  # noqa: PT011 - json's own errors among them
            read(text)


def test_acceptance_names_a_gpu_that_copies_or_multiplies_slowly_with_its_rate():
    speeds = (GpuSpeed(0, 4200.0, 650.0), GpuSpeed(1, 1060.0, 160.0))
    assert judge_memory(speeds, LIMITS) == failed("memory", "GPU 1: 1060 of at least 3710 GB/s")
    assert judge_matrix_products(speeds, LIMITS).text == "GPU 1: 160 of at least 523 TFLOPS"
    assert judge_memory(speeds[:1], LIMITS) == CheckResult("memory", "passed", "1 GPUs, the slowest 4200 GB/s")


def test_acceptance_fails_a_node_whose_nvme_disks_are_missing_smaller_or_slow():
    sizes = {"nvme0n1": 1000, "nvme1n1": 1000}
    assert judge_disks(sizes, None, LIMITS).outcome == "passed"
    assert judge_disks({"nvme0n1": 1000}, None, LIMITS).text == "1 of 2 NVMe disks are whole"
    assert judge_disks({**sizes, "nvme1n1": 0}, None, LIMITS).outcome == "failed"
    assert judge_disks(sizes, 3.0, LIMITS).text == "2 disks, read with 3.0 GB/s"
    assert judge_disks(sizes, 1.5, LIMITS).text == "they are read with 1.5 of at least 2 GB/s"
