import json
from collections.abc import Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from llmd_base.config_maps import join_pieces
from llmd_base.errors import InvalidStack, KitError
from llmd_base.progress import SilentProgress
from llmd_bench.deployment import ServerPod
from llmd_bench.files import Hints, read_rows
from llmd_bench.load.pod_load import LoadRequest, pack, unpack
from llmd_bench.load.records import Health, MeasuredWindow, RequestRecord, read_lines
from llmd_bench.load.stages import LoadStage, StageResult
from llmd_bench.load.workload import ConstantRate
from llmd_bench.rows import stage_row
from llmd_bench.run_context import RunContext
from llmd_oke import planning
from llmd_oke.config.pools import Taint
from llmd_oke.operations import load
from llmd_oke.operations.jobs import place_of
from llmd_oke.operations.load import (
    LoadFolder,
    LoadMeasurement,
    LoadOptions,
    PodResults,
    StoredLoad,
    folder_for_results,
    load_request,
    manifests,
    new_folder,
    store_load,
)
from llmd_oke.serving.jobs import JobSettings
from stack_files import PROJECT

RATE = LoadOptions(("constant:4",), duration_s=5.0)


@pytest.fixture(scope="module")
def plan():
    return planning.plan_stack_file(PROJECT, "guide")


def test_options_of_the_bench_command_reach_the_load_generator_pods(plan):
    asked = LoadOptions(
        ("constant:4",), duration_s=5.0, input_tokens="normal:64,8", parallelism=3, request_timeout_s=20.0
    )
    request = load_request(plan, plan.models[0], asked, "load-x")
    assert (request.input_tokens, request.parallelism, request.request_timeout_s) == ("normal:64,8", 3, 20.0)
    assert request.output_tokens == str(plan.models[0].workload.output_tokens)


@pytest.mark.parametrize(
    ("shape", "error", "why"),
    [("closed:4", InvalidStack, "it would never end"), ("trace:file.jsonl", KitError, "trace")],
    ids=["endless", "trace"],
)
def test_bench_in_the_cluster_refuses_endless_loads_and_files_that_its_pods_lack(plan, shape, error, why):
    with pytest.raises(error, match=why):
        load_request(plan, plan.models[0], LoadOptions((shape,)), "load-x")


@pytest.mark.parametrize("tool", ["own", "inference-perf"])
def test_the_load_generator_job_is_created_first_and_owns_all_its_other_objects(plan, tool):
    job, *others = manifests(plan, plan.models[0], RATE, tool)
    owners = {owner["name"] for item in others for owner in item["metadata"]["ownerReferences"]}
    assert (job["kind"], owners) == ("Job", {job["metadata"]["name"]})


def test_load_generator_pods_tolerate_the_taints_of_the_stacks_pools(plan):
    taint = Taint(key="team", value="search")
    pools = tuple(replace(pool, taints=(taint,)) for pool in plan.pools)
    place = place_of(replace(plan, pools=pools), "load-x")
    assert {"key": "team", "operator": "Equal", "value": "search", "effect": "NoSchedule"} in place.tolerations()


class Untouched:
    """A cluster in which nothing may happen."""

    def __init__(self, *_: object) -> None:
        self.client = None

    def send(self, *_: object) -> None:
        raise AssertionError("a load was sent")

    run_tool = send


@pytest.mark.parametrize("send", [load.in_cluster, load.with_tool])
def test_a_results_folder_that_cannot_be_created_is_refused_before_load_is_sent(plan, tmp_path, monkeypatch, send):
    monkeypatch.setattr(load, "ClusterAccess", Untouched)
    monkeypatch.setattr(load, "LoadJobs", Untouched)
    (tmp_path / "file").write_text("")
    keeping = LoadFolder(tmp_path / "file" / "bench", Hints())
    with pytest.raises(KitError, match="can't be made"):
        send(plan, plan.models[0], RATE, keeping, SilentProgress())


class Pods:
    """Two pods that send what they are asked; those of `lost` (number of the Job, number of the pod) leave nothing."""

    def __init__(self, lost: Set[tuple[int, int]], *, interrupted: bool = False) -> None:
        self.requests: list[LoadRequest] = []
        self._lost, self._interrupted = lost, interrupted

    def __call__(self, *_: object) -> "Pods":
        return self

    client = None

    @contextmanager
    def send(self, place: JobSettings, request: LoadRequest):
        assert place.job == request.job
        missing = {pod: "OOMKilled" for pod in range(2) if (len(self.requests), pod) in self._lost}
        self.requests.append(request)
        stages = [
            StageResult(stage, (RequestRecord(0, 0.0, 1.0, (0.5, 1.0), 100, 2),), Health(), MeasuredWindow(0.0, 1.0))
            for stage in request.stages()
        ]
        pods = [unpack(join_pieces(pack(RunContext(), stages))) for pod in range(2) if pod not in missing]
        yield PodResults(tuple(pods), missing, self._interrupted)


def sent_by(pods, plan, tmp_path, monkeypatch, restarts=()) -> StoredLoad:
    counted = iter(restarts)
    monkeypatch.setattr(load, "running_servers", lambda *_: (ServerPod("decode", "d", next(counted, 9)),))
    monkeypatch.setattr(load, "ClusterAccess", Untouched)
    monkeypatch.setattr(load, "LoadJobs", pods)
    asked = LoadOptions(("constant:0.25", "poisson:8"), duration_s=5.0, parallelism=2)
    return load.in_cluster(plan, plan.models[0], asked, LoadFolder(tmp_path / "bench", Hints()), SilentProgress())


def test_a_load_that_lacks_no_result_or_that_the_user_interrupts_is_not_repeated(plan, tmp_path, monkeypatch):
    kept = sent_by(pods := Pods(set()), plan, tmp_path / "whole", monkeypatch)
    assert (len(pods.requests), len(kept.found.rows), kept.unmeasured) == (1, 2, ())
    kept = sent_by(pods := Pods({(0, 1)}, interrupted=True), plan, tmp_path / "interrupted", monkeypatch)
    assert (len(pods.requests), kept.interrupted) == (1, True)


def test_a_load_that_lacks_a_pods_result_is_repeated_once_with_other_prompts(plan, tmp_path, monkeypatch):
    kept = sent_by(pods := Pods({(0, 1)}), plan, tmp_path, monkeypatch)
    first, again = pods.requests
    assert (again.shapes, again.limit_s) == (first.shapes, first.limit_s)
    assert {again.run, again.job}.isdisjoint({first.run, first.job})
    assert [row.origin.run for row in read_rows(tmp_path / "bench" / "rows.jsonl")] == [again.run] * 2
    assert "the first: 1 of 2 pods left no result" in str(kept.found.rows[0].notes)
    assert kept.unmeasured == ()


def test_a_load_that_lacks_pods_results_twice_gives_no_row_but_keeps_requests(plan, tmp_path, monkeypatch):
    kept = sent_by(Pods({(0, 1), (1, 0)}), plan, tmp_path, monkeypatch)
    assert read_rows(tmp_path / "bench" / "rows.jsonl") == []
    assert (tmp_path / "bench" / "requests.jsonl").read_text()
    assert kept.unmeasured[0] == "constant:0.25: 1 of 2 pods left no result: 50% of the load is missing"


def test_a_load_with_restarts_of_servers_is_repeated_once_and_then_gives_no_row(plan, tmp_path, monkeypatch):
    kept = sent_by(pods := Pods(set()), plan, tmp_path / "once", monkeypatch, restarts=(8, 9))
    assert len(pods.requests) == 2
    assert "the first: 1 model server restarted during the run" in str(kept.found.rows[0].notes)
    assert kept.unmeasured == ()
    kept = sent_by(Pods(set()), plan, tmp_path / "twice", monkeypatch, restarts=(1, 2, 3, 4))
    assert kept.found.rows == ()
    assert "1 model server restarted during the run" in kept.unmeasured[0]


def test_bench_in_the_cluster_creates_no_results_folder_for_a_refused_load(plan, tmp_path):
    keeping = LoadFolder(tmp_path / "x", Hints())
    with pytest.raises(InvalidStack):
        load.in_cluster(plan, plan.models[0], LoadOptions(("closed:4",)), keeping, SilentProgress())
    assert not (tmp_path / "x").exists()


RECORD = RequestRecord(0, 0.0, 1.0, (0.5, 1.0), 100, 2, due_s=0.0)
STAGE = StageResult(LoadStage(ConstantRate(1), 1), (RECORD,), Health(), MeasuredWindow(0.0, 1.0))
ROW = stage_row(STAGE, model="m", gpu="MI300X", gpus_counted=1)
BROKEN = json.dumps({"load_summary": {"count": "many"}, "successes": {}})


def kept(folder: Path, **files: str):
    named = {name.replace("__", "/"): text for name, text in files.items()}
    return store_load(LoadMeasurement((), files=named), LoadFolder(folder, Hints()))


def test_rows_and_requests_of_each_load_stage_are_stored(tmp_path: Path):
    store_load(LoadMeasurement((ROW,), (STAGE, STAGE)), LoadFolder(tmp_path, Hints()))
    assert read_rows(tmp_path / "rows.jsonl") == [ROW]
    assert [number for number, _ in read_lines((tmp_path / "requests.jsonl").read_text().splitlines())] == [0, 1]


def test_files_of_inference_perf_keep_their_paths_and_unreadable_ones_are_reported(tmp_path: Path):
    kept(tmp_path, a__log="one", b__log="two")
    assert [(tmp_path / "inference-perf" / name / "log").read_text() for name in "ab"] == ["one", "two"]
    (rejected,) = kept(tmp_path, **{"stage_0_lifecycle_metrics.json": BROKEN}).found.rejected
    assert rejected.file.endswith("stage_0_lifecycle_metrics.json")


@pytest.mark.parametrize("name", ["../rows.jsonl", "/etc/passwd", "a/../../x"])
def test_result_files_of_a_pod_whose_names_leave_the_results_folder_are_refused(tmp_path: Path, name: str):
    with pytest.raises(KitError, match="the name"):
        store_load(LoadMeasurement((), files={name: ""}), LoadFolder(tmp_path / "in", Hints()))


def test_a_load_tools_results_file_that_cannot_be_written_is_reported(tmp_path: Path):
    (tmp_path / "inference-perf").write_text("")
    with pytest.raises(KitError, match="can't be written"):
        kept(tmp_path, a="")


def test_a_results_folder_that_is_still_empty_after_an_error_is_removed(tmp_path: Path):
    with pytest.raises(KitError), folder_for_results(tmp_path / "empty"):
        raise KitError("nothing was measured")
    with folder_for_results(tmp_path / "full"):
        (tmp_path / "full/rows.jsonl").write_text("")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


def test_slashes_of_a_full_stack_name_are_underscores_in_the_results_folder(tmp_path: Path):
    assert new_folder(tmp_path, "acme/llm/dev").relative_to(tmp_path).parts[:2] == ("acme_llm_dev", "bench")
