"""Results of smoke benchmarks in the cluster, read by a command."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from lightkube.models.batch_v1 import JobCondition, JobStatus
from lightkube.models.core_v1 import ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Pod
from llmd_base.config_maps import JOB_ANNOTATION
from llmd_base.errors import KitError
from llmd_bench.deployment import Snapshot
from llmd_bench.evals import BuiltinResult
from llmd_bench.jobs.smoke import RESULT_KEY, pack
from llmd_bench.load.records import RequestRecord
from llmd_bench.performance import summarize
from llmd_bench.run_context import RunContext
from llmd_bench.smoke import SmokeResult, bare_plan
from llmd_bench.smoke_request import SmokeLimits, judge
from llmd_oke import config, planning
from llmd_oke.operations import evals, smoke
from llmd_oke.operations.smoke import store_result
from llmd_oke.program.smoke import facts, smoke_request
from stack_files import PROJECT

MODEL = "gpt-oss-120b"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class FakeClient:
    """A cluster of a few objects; ConfigMaps by name."""

    def __init__(self, jobs=(), pods=(), config_maps=()):
        self.lists = {Job: list(jobs), Pod: list(pods)}
        self.config_maps = {item.metadata.name: item for item in config_maps}

    def list(self, kind, namespace, labels):
        return iter(self.lists[kind])

    def get(self, kind, name, namespace):
        return self.config_maps[name]


def job(name="smoke-1", ended="Complete", day=1) -> Job:
    conditions = [JobCondition(type=ended, status="True", message="why")] if ended else []
    created = datetime(2026, 1, day, tzinfo=UTC)
    return Job(metadata=ObjectMeta(name=name, creationTimestamp=created), status=JobStatus(conditions=conditions))


def pod(message: str) -> Pod:
    state = ContainerState(terminated=ContainerStateTerminated(exitCode=1, message=message))
    status = ContainerStatus(image="i", imageID="i", name="smoke", ready=False, restartCount=0, state=state)
    return Pod(metadata=ObjectMeta(name="p"), status=PodStatus(containerStatuses=[status]))


@pytest.fixture(scope="module")
def plan():
    return planning.plan_stack_file(PROJECT, "rehearsal")


def measured(request, records=(), examined=None) -> SmokeResult:
    performance = summarize(records, planned=4, gpus=16, concurrency=2)
    nothing, verdict = Snapshot(()), judge(request.thresholds, performance, None)
    bare = bare_plan(request, RunContext())
    return SmokeResult(
        bare, "r", NOW, NOW, 1.0, records, performance, None, verdict, nothing, nothing, (), examined=examined
    )


@pytest.fixture
def result(plan) -> ConfigMap:
    request = replace(smoke_request(plan, plan.models[0]), thresholds=SmokeLimits(max_ttft_p95_ms=1.0))
    actual = measured(request, tuple(RequestRecord(i, 0.0, 0.3, (0.1, 0.2), 10, 2) for i in range(4)))
    packed = base64.b64encode(pack(request, RunContext(), actual).result).decode()
    metadata = ObjectMeta(name=f"smoke-{MODEL}", annotations={JOB_ANNOTATION: "smoke-1"})
    return ConfigMap(metadata=metadata, binaryData={RESULT_KEY: packed})


def fetched(monkeypatch, plan, client, folder):
    monkeypatch.setattr(smoke, "ClusterAccess", lambda _: type("Access", (), {"client": client})())
    (outcome,) = smoke.fetch("mine", plan, folder)
    return outcome


def test_the_result_of_the_newest_smoke_job_is_stored_as_a_report(monkeypatch, plan, result, tmp_path):
    jobs = [job("smoke-0", day=1), job("smoke-1", ended="Failed", day=2)]
    outcome = fetched(monkeypatch, plan, FakeClient(jobs, config_maps=[result]), tmp_path)
    assert outcome.failed == ("TTFT p95",)
    assert outcome.report.parent == tmp_path / "mine" / "20260101T120000Z"
    assert len((outcome.report.parent / "requests.jsonl").read_text().splitlines()) == 4


def test_a_smoke_jobs_accuracy_score_is_stored_for_the_measured_configuration_only(plan, tmp_path):
    asked = replace(smoke_request(plan, plan.models[0]), facts=facts("mine", plan, plan.models[0]))
    actual = measured(asked, examined=BuiltinResult("set", NOW, 60.0, "1" * 79 + "0", 1, ("sum-1: 'x'",)))
    store_result(actual, tmp_path, "mine", NOW, plan, plan.models[0])
    kept = evals.latest(tmp_path, "mine", MODEL, "builtin", plan.config_hash)
    assert (kept.score, kept.model, kept.image) == (79 / 80, MODEL, plan.release.vllm.image.reference)
    override = config.stack.Override(quick_reduce="INT4")
    other = replace(plan, config=plan.config.model_copy(update={"override": override}))
    assert evals.latest(tmp_path, "mine", MODEL, "builtin", other.config_hash) is None


def test_without_a_result_of_its_own_a_smoke_jobs_termination_message_is_shown(monkeypatch, plan, result, tmp_path):
    words = json.dumps({"message": "no answer", "failed": ["no measurement"]})
    client = FakeClient([job("smoke-2", ended="Failed")], [pod(words)], [result])
    outcome = fetched(monkeypatch, plan, client, tmp_path)
    assert (outcome.failed, outcome.report, str(outcome.table)) == (("no measurement",), None, "no answer")
    client = FakeClient([job(ended="Failed")], [pod("Traceback: x")])
    monkeypatch.setattr(smoke.JobReader, "config_map", lambda _self, _name: None)
    outcome = fetched(monkeypatch, plan, client, tmp_path)
    assert (outcome.failed, str(outcome.table)) == (("no measurement",), "Traceback: x")


def test_a_smoke_job_that_is_running_or_not_there_is_an_error_that_says_so(monkeypatch, plan, tmp_path):
    with pytest.raises(KitError, match="still running"):
        fetched(monkeypatch, plan, FakeClient([job(ended=None)]), tmp_path)
    with pytest.raises(KitError, match=r"smoke\.where: cluster"):
        fetched(monkeypatch, plan, FakeClient(), tmp_path)
