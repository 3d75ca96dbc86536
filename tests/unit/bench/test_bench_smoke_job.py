import asyncio
import gzip
import io
import json
from dataclasses import replace
from random import Random

import pytest
from fake_deployment import QUESTIONS, REQUEST, Deployment, measured
from llmd_base.addresses import HttpEndpoint, PodAddress
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_bench.jobs import smoke as smoke_job
from llmd_bench.jobs.smoke import (
    LARGEST_BYTES,
    LONGEST_WORDS_BYTES,
    RESULT_KEY,
    failure_message,
    pack,
    termination_message,
    unpack,
)
from llmd_bench.report import build_report, summarize_result
from llmd_bench.run_context import VARIABLE, RunContext
from llmd_bench.smoke import TOO_SLOW, SmokeResult
from llmd_bench.smoke_request import SmokeLimits
from llmd_bench.tables import render
from rich.console import Console

HOW = RunContext()


@pytest.fixture(scope="module")
def result() -> SmokeResult:
    return measured(thresholds=SmokeLimits(min_remote_prefill_share=0.95, max_ttft_p95_ms=1e-6), facts=REQUEST.facts)


def shown(result: SmokeResult) -> str:
    text = io.StringIO()
    Console(file=text, width=120).print(render(result))
    return text.getvalue()


def test_a_packed_benchmark_result_is_shown_summarized_and_reported_as_the_original(result):
    parcel = pack(REQUEST, HOW, result)
    arrived = unpack(parcel.result)
    assert shown(arrived) == shown(result)
    assert {**summarize_result(arrived), "load": None} == {**summarize_result(result), "load": None}
    assert build_report(arrived).results.request_performance == build_report(result).results.request_performance
    assert json.loads(parcel.texts["summary.json"])["passed"] is False
    assert "version: '0.2'" in parcel.texts["report.yaml"]


def test_a_result_too_large_for_a_configmap_omits_token_times(result, monkeypatch):
    monkeypatch.setattr(smoke_job, "LARGEST_BYTES", LARGEST_BYTES // 20)
    random = Random(1)  # noqa: S311 - noise
    times = [[random.random() for _ in range(3000)] for _ in range(25)]
    records = (replace(result.records[0], index=i, event_times_s=noise) for i, noise in enumerate(times))
    large = replace(result, records=tuple(records))
    parcel = pack(REQUEST, HOW, large)
    arrived = unpack(parcel.result)
    assert len(parcel.result) <= LARGEST_BYTES // 20
    assert [len(record.event_times_s) for record in arrived.records] == [2] * 25
    assert arrived.performance == result.performance
    assert "too large" in arrived.notes[-1]


def test_a_smoke_jobs_termination_message_names_missed_limits_and_a_slow_machine(result):
    words = json.loads(termination_message("gpt", result))
    assert words["failed"] == ["TTFT p95"]
    assert words["message"].startswith("gpt failed its smoke benchmark: TTFT p95")
    assert words["message"].endswith("llmd-oke smoke --fetch --stack mine")
    slow = f"{TOO_SLOW}: 34% of its steps were late"
    assert slow in json.loads(termination_message("gpt", replace(result, notes=(slow,))))["message"]


def test_a_smoke_jobs_termination_message_is_at_most_4096_bytes():
    words = failure_message("gpt", KitError("ä" * 9000))
    assert len(words.encode()) <= LONGEST_WORDS_BYTES
    assert json.loads(words)["failed"] == ["no measurement"]
    assert smoke_job.LONGEST_WORDS_BYTES == 4096


ENVIRONMENT = {"JOB_NAME": "smoke-1", "JOB_UID": "uid-1", "RESULT_NAME": "smoke-gpt"}


class FakeCluster:
    """The fake deployment's one address for all of its programs."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.applied: list[dict] = []

    def service(self, namespace, name):
        return HttpEndpoint(self._deployment.url)

    def pods(self, namespace, labels):
        return [PodAddress(labels["role"], labels["role"])]

    def pod(self, namespace, pod, port):
        return HttpEndpoint(self._deployment.url + ("" if port == REQUEST.server_port else f"/{pod.name}"))

    def apply(self, config_map):
        self.applied.append(config_map)


async def run(deployment: Deployment, request=REQUEST, **told: str) -> tuple[FakeCluster, object]:
    cluster = FakeCluster(deployment)
    return cluster, await asyncio.to_thread(smoke_job.run, request, {**ENVIRONMENT, **told}, cluster)


async def test_a_smoke_jobs_configmap_is_its_own_and_has_the_rehearsals_time_scale(deployment):
    how = RunContext(0.5, Basis.CALIBRATED, ("vLLM",), {})
    cluster, result = await run(deployment, **{VARIABLE: how.to_text()})
    assert (result.plan.time_scale, result.plan.basis, result.plan.simulated) == (0.5, "calibrated", ("vLLM",))
    (written,) = cluster.applied
    assert written["metadata"]["name"] == "smoke-gpt"
    assert written["metadata"]["annotations"] == {smoke_job.JOB_ANNOTATION: "smoke-1"}
    assert written["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    packed = smoke_job.base64.b64decode(written["binaryData"][RESULT_KEY])
    assert gzip.decompress(packed)
    assert unpack(packed).run == result.run


async def test_a_failed_evaluation_is_in_the_smoke_jobs_result_and_fails_the_job(deployment):
    request = replace(REQUEST, questions=QUESTIONS, thresholds=SmokeLimits(min_accuracy=0.95))
    cluster, result = await run(deployment, request)
    packed = smoke_job.base64.b64decode(cluster.applied[0]["binaryData"][RESULT_KEY])
    assert unpack(packed).examined == result.examined
    words = json.loads(termination_message("gpt", result))
    assert (words["passed"], words["failed"]) == (False, ["accuracy"])
    assert "gpt failed its smoke benchmark: accuracy 0, at least 0.95 share (0 of 20 questions" in words["message"]
