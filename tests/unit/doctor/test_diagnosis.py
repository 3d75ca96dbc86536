"""Diagnoses of archives and folders: evidence by place, what is over, what is hostile, and what is healthy."""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_oke.catalogue.signatures import text_signatures
from llmd_oke.operations.doctor import log_search, sources
from llmd_oke.operations.doctor.diagnosis import Diagnosis, diagnose, known_fault, log_place
from llmd_oke.operations.doctor.log_search import LogSearch
from llmd_oke.operations.doctor.sources import open_source

MADE = "2026-11-29T02:00:00+00:00"
RECENT, OLD = "2026-11-29T01:55:00Z", "2026-11-28T01:55:00Z"
FAULT = b"RuntimeError: NIXL compatibility hash mismatch.\n"

HEALTHY_LOGS = {
    "decode-0/vllm.log": """\
INFO 11-29 02:00:00 [loggers.py:257] Engine 000: Avg prompt throughput: 12.0 tokens/s, GPU KV cache usage: 3.1%
(APIServer pid=1) INFO:     10.0.0.1:0 - "POST /v1/completions HTTP/1.1" 200 OK
WARNING 11-29 02:00:00 [nixl_utils.py:34] NIXL is not available
INFO [nixl_connector.py] Initializing NIXL wrapper
INFO [shm_broadcast.py:681] No available shared memory broadcast block found in 60 seconds.
[aiter] import [module_moe_sorting]
[aiter] start build [module_aiter_enum] under /aiter
INFO Using TRITON_ATTN backend
""",
    "router-0/epp.log": """\
{"level":"info","ts":"2026-11-29T02:00:00Z","msg":"EPP received request","x-request-id":"a"}
{"level":"info","msg":"Pool is not initialized, skipping refreshing metrics"}
""",
    "front-door-0/envoy.log": '{"status":200,"details":"via_upstream","flags":"-"}\n',
    "plugin-0/amd-gpu.log": "I0307 23:29:14.533973 1 plugin.go:136] Found 8 AMDGPUs\n",
}


def names(diagnosis: Diagnosis) -> list[str]:
    return [finding.name for finding in diagnosis.findings]


def archived(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"s-support/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def manifest(**more: object) -> bytes:
    return json.dumps({"stack": "prod", "made": MADE, "missing": [], **more}).encode()


def documents(**kinds: object) -> dict[str, bytes]:
    return {f"cluster/{kind}.json": json.dumps(items).encode() for kind, items in kinds.items()}


def pod(name: str, *, ready: bool, **status: object) -> dict[str, object]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    own = {"name": name, "namespace": "llm-d"}
    return {"metadata": own, "spec": {"nodeName": "10.0.12.7"}, "status": {"conditions": conditions, **status}}


def event(kind: str, name: str, reason: str, message: str, *, last: str = RECENT, count: int = 1) -> dict[str, object]:
    involved = {"kind": kind, "name": name, "namespace": "llm-d"}
    return {"involvedObject": involved, "reason": reason, "message": message, "count": count, "lastTimestamp": last}


def conditioned(name: str, *conditions: tuple[str, str, str, str]) -> dict[str, object]:
    """An object with conditions: their types, statuses, reasons and messages."""
    keys = ("type", "status", "reason", "message")
    told = [dict(zip(keys, condition, strict=True)) for condition in conditions]
    return {"metadata": {"name": name, "namespace": "llm-d"}, "status": {"conditions": told}}


def test_the_evidence_for_a_fault_names_pod_container_node_times_and_count(tmp_path: Path):
    lines = b"".join(b"ERROR 11-29 02:0%d:00 x NIXL compatibility hash mismatch.\n" % minute for minute in range(3))
    files = {"manifest.json": manifest(), "logs/decode-0/vllm.previous.log": lines}
    files |= documents(pods=[pod("decode-0", ready=True)], jobs=[])
    diagnosis = diagnose(open_source(archived(tmp_path / "a.tar.gz", files)))
    (finding,) = diagnosis.findings
    (evidence,) = finding.evidence
    assert (evidence.count, evidence.first, evidence.last) == (3, "11-29 02:00:00", "11-29 02:02:00")
    assert evidence.place.text == "decode-0 (vllm)"
    assert evidence.place.node == "10.0.12.7"
    assert finding.command == "llmd-oke drift --stack prod"
    assert (diagnosis.stack, diagnosis.logs) == ("prod", 1)


def test_a_diagnosis_lists_the_worst_fault_first_and_files_that_the_archive_lacks(tmp_path: Path):
    missing = [{"path": "logs/decode-1/vllm.log", "why": "HTTP 403: no"}]
    log = (
        b'NCCL WARN Missing "iommu=pt"\n' + FAULT + b"HW Exception by GPU node-1 (Agent handle: 0x1) reason :GPU Hang\n"
    )
    files = {"manifest.json": manifest(missing=missing), "logs/decode-0/vllm.log": log}
    diagnosis = diagnose(open_source(archived(tmp_path / "a.tgz", files)))
    assert names(diagnosis) == ["rocm-gpu-hangs", "nixl-versions-differ", "rccl-iommu"]
    assert diagnosis.missing == {"logs/decode-1/vllm.log": "HTTP 403: no"}


@pytest.mark.parametrize("mapped_bytes", [1, 2**20])
def test_doctor_searches_a_folder_or_a_single_log_without_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped_bytes: int
):
    monkeypatch.setattr(sources, "MAPPED_BYTES", mapped_bytes)
    (tmp_path / "logs" / "decode-0").mkdir(parents=True)
    log = tmp_path / "logs" / "decode-0" / "vllm.log"
    log.write_bytes(FAULT)
    (tmp_path / "empty.log").touch()
    (tmp_path / "picture.svg").write_bytes(FAULT)
    folder = diagnose(open_source(tmp_path), "prod")
    assert (names(folder), folder.logs) == (["nixl-versions-differ"], 2)
    assert folder.findings[0].evidence[0].place.pod == "decode-0"
    assert names(diagnose(open_source(log))) == ["nixl-versions-differ"]


def test_doctor_reads_compressed_logs_and_refuses_damaged_ones(tmp_path: Path):
    log = tmp_path / "decode-0" / "vllm.log.20261129-020000.gz"
    log.parent.mkdir()
    log.write_bytes(gzip.compress(FAULT))
    for path in (tmp_path, log):
        assert names(diagnose(open_source(path))) == ["nixl-versions-differ"]
    log.write_bytes(gzip.compress(FAULT)[:30])
    with pytest.raises(KitError, match="no whole log"):
        diagnose(open_source(log))


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        (b"", {}),
        (bytes(range(256)) * 400, {"logs/vllm.log": "it isn't text in UTF-8"}),
        (FAULT.decode().encode("utf-16"), {"logs/vllm.log": "it isn't text in UTF-8"}),
    ],
    ids=["empty", "binary", "utf-16"],
)
def test_a_log_that_is_empty_or_no_text_is_nothing_to_call_healthy(
    tmp_path: Path, content: bytes, missing: dict[str, str]
):
    (tmp_path / "vllm.log").write_bytes(content)
    diagnosis = diagnose(open_source(tmp_path / "vllm.log"))
    assert (diagnosis.seen, diagnosis.missing) == (False, missing)


def test_a_log_with_zeros_where_it_was_cut_is_searched(tmp_path: Path):
    (tmp_path / "vllm.log").write_bytes(bytes(10_000) + b"\n" + FAULT * 200)
    assert names(diagnose(open_source(tmp_path / "vllm.log"))) == ["nixl-versions-differ"]


def test_doctor_does_not_follow_links_in_a_folder_of_logs(tmp_path: Path):
    (tmp_path / "secret.log").write_bytes(FAULT)
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "vllm.log").symlink_to(tmp_path / "secret.log")
    (folder / "more").symlink_to(tmp_path)
    assert not diagnose(open_source(folder)).seen


@pytest.mark.parametrize(
    ("path", "namespace", "of_pod", "container"),
    [
        ("logs/decode-0/vllm.log", None, "decode-0", "vllm"),
        ("logs/pods/llm-d/decode-0/vllm.previous.log", "llm-d", "decode-0", "vllm"),
        ("logs/etcd.log", None, None, "etcd"),
        ("decode-0/vllm.log.1", None, "decode-0", "vllm"),
    ],
)
def test_the_path_of_a_log_gives_its_namespace_pod_and_container(
    path: str, namespace: str | None, of_pod: str | None, container: str
):
    place = log_place(path)
    assert (place.namespace, place.pod, place.container) == (namespace, of_pod, container)


def test_doctor_finds_faults_in_events_and_container_states_of_unready_pods(tmp_path: Path):
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}
    statuses = [
        {"name": "vllm", "state": waiting, "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    ]
    pods = [pod("decode-0", ready=False, containerStatuses=statuses)]
    warnings = [
        event("Pod", "decode-0", "Failed", "cannot allocate unhealthy devices amd.com/gpu, which is unexpected")
    ]
    diagnosis = diagnose(documents(pods=pods, warnings=warnings).items())
    assert set(names(diagnosis)) == {"pod-secret-missing", "container-out-of-memory", "gpu-unhealthy"}
    assert "kubectl -n llm-d describe pod decode-0" in {finding.command for finding in diagnosis.findings}


def test_doctor_finds_log_faults_in_termination_messages_but_state_faults_in_no_log():
    ended = {"terminated": {"reason": "Error", "exitCode": 1, "message": "torch.OutOfMemoryError: HIP out of memory."}}
    pods = [pod("decode-0", ready=False, containerStatuses=[{"name": "vllm", "lastState": ended}])]
    assert names(diagnose(documents(pods=pods).items())) == ["vllm-gpu-out-of-memory"]
    assert names(diagnose([("logs/accept-0/acceptance.log", b"not tested: 1 Insufficient amd.com/gpu.\n")])) == []


def test_doctor_does_not_report_faults_that_have_ended(tmp_path: Path):
    over = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": OLD}}
    pods = [pod("decode-0", ready=True, containerStatuses=[{"name": "vllm", "lastState": over}])]
    full = "0/1 nodes are available: 1 Insufficient amd.com/gpu."
    disk = "The node was low on resource: ephemeral-storage."
    warnings = [
        event("Pod", "decode-0", "FailedScheduling", full),
        event("Pod", "gone", "FailedScheduling", full),
        event("Node", "10.0.12.7", "Evicted", disk, last=OLD),
        event("ReplicaSet", "r", "FailedCreate", "failed calling webhook x", count=2),
    ]
    files = {"manifest.json": manifest(), **documents(pods=pods, warnings=warnings)}
    assert names(diagnose(files.items())) == []
    warnings[2:] = [
        event("Node", "10.0.12.7", "Evicted", disk),
        event("ReplicaSet", "r", "F", "failed calling webhook", count=9),
    ]
    files |= documents(warnings=warnings)
    assert set(names(diagnose(files.items()))) == {"node-disk-full", "webhook-does-not-answer"}


def test_doctor_finds_faults_of_nodes_jobs_and_unschedulable_pods():
    silent = ("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    full = ("DiskPressure", "True", "KubeletHasDiskPressure", "kubelet has disk pressure")
    late = ("Failed", "True", "DeadlineExceeded", "Job was active longer than specified deadline")
    unplaced = "0/1 nodes are available: 1 Insufficient nvidia.com/sriov-rdma-vf."
    nodes, jobs = [conditioned("10.0.12.7", silent, full)], [conditioned("smoke", late)]
    pending = conditioned("p", ("PodScheduled", "False", "Unschedulable", unplaced))
    found = diagnose(documents(nodes=nodes, jobs=jobs, pods=[pending]).items())
    expected = {"node-not-answering", "node-disk-full", "job-took-too-long", "rdma-no-virtual-function-free"}
    assert set(names(found)) == expected
    assert "kubectl describe node 10.0.12.7" in {finding.command for finding in found.findings}


@pytest.mark.parametrize(
    ("symptom", "known"),
    [
        ("pod p: has no node: 0/1 nodes are available: 1 Insufficient amd.com/gpu.", True),
        ("node n is not Ready for 4 min: NodeStatusUnknown: Kubelet stopped posting node status.", True),
        ("the front door of m has no ready Envoy", False),
        ("HIP out of memory", False),  # a text of logs
    ],
)
def test_a_symptom_of_the_status_command_is_matched_to_a_fault_that_doctor_knows(symptom: str, known: bool):
    assert (known_fault(symptom) is not None) is known


def test_doctor_finds_no_fault_in_logs_objects_and_metrics_of_a_healthy_stack():
    files = {f"logs/{name}": text.encode() for name, text in HEALTHY_LOGS.items()}
    nodes = [conditioned("n", ("Ready", "True", "", ""), ("DiskPressure", "False", "", ""))]
    files |= documents(pods=[pod("decode-0", ready=True)], nodes=nodes, jobs=[], warnings=[])
    for number, failed in enumerate(("0", "NaN", "+Inf")):
        metrics = (
            f"vllm:nixl_num_failed_transfers_total {failed}\nvllm:num_preemptions_total 1\n"
            'vllm:request_success_total{finished_reason="stop"} 1000\n'
        )
        files[f"metrics/decode-{number}.prom"] = metrics.encode()
    diagnosis = diagnose(files.items())
    assert names(diagnosis) == []
    assert (diagnosis.logs, diagnosis.programs, diagnosis.seen) == (4, 3, True)


# What is hostile.


def test_evidence_for_a_fault_contains_no_secret_and_no_overlong_line():
    line = FAULT.strip() + b" HF_TOKEN=hf_planted0123456789 " + b"x" * 5000
    (finding,) = diagnose([("logs/p/vllm.log", line)]).findings
    assert "hf_planted" not in finding.evidence[0].line
    assert len(finding.evidence[0].line) < 400


def test_doctor_suggests_no_command_with_a_name_that_a_shell_would_execute():
    (finding,) = diagnose([("logs/$(reboot);x/vllm.log", b"NIXL_ERR_REMOTE_DISCONNECT")]).findings
    assert finding.command == "kubectl -n NAMESPACE delete pod POD"


@pytest.mark.timeout(300)
def test_log_lines_that_match_a_fault_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_search, "MAX_LINES", 1000)
    search = LogSearch(text_signatures())
    hits = search(FAULT * 2000, "vllm")["nixl-versions-differ"]
    assert (hits.count, hits.more) == (1000, True)
    assert search(b"plugin type '" * 100_000, "epp") == {}


def test_fault_texts_are_found_across_read_buffers_and_in_lines_of_any_length():
    search = LogSearch(text_signatures())
    for before in (2**20 - 5, 2**20 - len(FAULT), 2**20 - 1, 2**20):
        for filler in (b"x", b"x\n"):
            content = (filler * 2**20)[:before] + FAULT + filler * 1000
            assert search(content, "vllm")["nixl-versions-differ"].count == 1


def bomb(path: Path, name: str = "s/logs/p/vllm.log", kind: bytes = tarfile.REGTYPE, size: int = 2**40) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(entry.tobuf(tarfile.GNU_FORMAT))
        for _ in range(40):
            file.write(bytes(2**20))


def header_bomb(path: Path) -> None:
    bomb(path, "././@LongLink", tarfile.GNUTYPE_LONGNAME, 2**34)


def many_files(path: Path) -> None:
    archived(path, {f"logs/{number}.log": b"" for number in range(30)})


def cut(path: Path) -> None:
    archived(path, {"logs/p/vllm.log": os.urandom(50_000)})
    path.write_bytes(path.read_bytes()[:20_000])


def no_archive(path: Path) -> None:
    path.write_bytes(b"not an archive")


def no_tar(path: Path) -> None:
    path.write_bytes(gzip.compress(b"not a tar" * 1000))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "make", [bomb, header_bomb, many_files, cut, no_archive, no_tar], ids=lambda make: make.__name__
)
def test_doctor_refuses_a_damaged_archive_with_a_remedy_and_extracts_nothing(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sources, "MAX_ARCHIVE_BYTES", 16 * 2**20)
    monkeypatch.setattr(sources, "MAX_FILES", 20)
    make(tmp_path / "a.tar.gz")
    with pytest.raises(KitError) as caught:
        diagnose(open_source(tmp_path / "a.tar.gz"))
    assert caught.value.remedy == "llmd-oke support writes another one."
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.tar.gz"]


def test_doctor_extracts_no_escaping_paths_links_or_devices_from_an_archive(tmp_path: Path):
    file = tmp_path / "a.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for name, kind, target in (
            ("s/../../../../escaped.log", tarfile.REGTYPE, ""),
            ("/etc/escaped.log", tarfile.REGTYPE, ""),
            ("s/logs/link.log", tarfile.SYMTYPE, "/etc/passwd"),
            ("s/logs/hard.log", tarfile.LNKTYPE, "/etc/passwd"),
            ("s/logs/pipe.log", tarfile.FIFOTYPE, ""),
            ("s/logs/zero.log", tarfile.CHRTYPE, ""),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            entry.size = len(FAULT) if kind == tarfile.REGTYPE else 0
            archive.addfile(entry, io.BytesIO(FAULT))
    diagnosis = diagnose(open_source(file))
    assert diagnosis.logs == 2
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.tar.gz"]


def damaged() -> Iterator[bytes]:
    yield b"{"
    yield b"[" * 200_000
    yield b'[1, null, {"metadata": 5}, {"metadata": {"name": 7}}, {"involvedObject": {"kind": []}}]'
    yield b'{"stack": 5, "made": "never", "missing": [1, {"path": []}]}'
    yield b"\xff\xfe\x00"
    yield b"null"


@pytest.mark.parametrize("content", list(damaged()), ids=range(6))
@pytest.mark.parametrize("path", ["manifest.json", "cluster/pods.json", "cluster/warnings.json", "metrics/p.prom"])
def test_doctor_skips_damaged_files_of_an_archive_and_reads_its_other_files(path: str, content: bytes):
    files = {path: content, "logs/p/vllm.log": FAULT}
    assert names(diagnose(files.items())) == ["nixl-versions-differ"]
