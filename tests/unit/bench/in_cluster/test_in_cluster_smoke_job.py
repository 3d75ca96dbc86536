import asyncio
import gzip
import json
from dataclasses import replace

from fake_deployment import Deployment
from llmd_oke.bench.deployment.circumstances import VARIABLE, Circumstances
from llmd_oke.bench.deployment.directory import PodAddress, Way
from llmd_oke.bench.evals.builtin import builtin_set
from llmd_oke.bench.in_cluster import smoke_job
from llmd_oke.bench.in_cluster.smoke_result import RESULT_KEY, last_words, unpack
from llmd_oke.bench.smoke.thresholds import Thresholds
from llmd_oke.results.row import Basis
from smoke_requests import REQUEST

ENVIRONMENT = {"JOB_NAME": "smoke-1", "JOB_UID": "uid-1", "RESULT_NAME": "smoke-gpt"}


class FakeCluster:
    """The fake deployment's one address for all of its programs."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.applied: list[dict] = []

    def service(self, namespace, name):
        return Way(self._deployment.url)

    def pods(self, namespace, labels):
        return [PodAddress(labels["role"], labels["role"])]

    def pod(self, namespace, pod, port):
        return Way(self._deployment.url) if port == REQUEST.server_port else Way(f"{self._deployment.url}/{pod.name}")

    def apply(self, config_map):
        self.applied.append(config_map)


async def run(deployment: Deployment, request=REQUEST, **told: str) -> tuple[FakeCluster, object]:
    cluster = FakeCluster(deployment)
    return cluster, await asyncio.to_thread(smoke_job.run, request, {**ENVIRONMENT, **told}, cluster)


async def test_the_result_belongs_to_its_job_and_can_be_read_again(deployment):
    cluster, result = await run(deployment)
    (written,) = cluster.applied
    assert written["metadata"]["name"] == "smoke-gpt"
    assert written["metadata"]["annotations"] == {smoke_job.JOB_ANNOTATION: "smoke-1"}
    assert written["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    packed = smoke_job.base64.b64decode(written["binaryData"][RESULT_KEY])
    assert gzip.decompress(packed)
    assert unpack(packed).run == result.run


async def test_an_evaluation_arrives_with_the_result_and_fails_the_job_in_words(deployment):
    request = replace(REQUEST, questions=builtin_set(), thresholds=Thresholds(min_accuracy=0.95))
    cluster, result = await run(deployment, request)
    packed = smoke_job.base64.b64decode(cluster.applied[0]["binaryData"][RESULT_KEY])
    assert unpack(packed).examined == result.examined
    words = json.loads(last_words("gpt", result))
    assert (words["passed"], words["failed"]) == (False, ["accuracy"])
    assert "gpt failed its smoke benchmark: accuracy 0, at least 0.95 share (0 of 80 questions" in words["message"]


async def test_it_measures_on_the_clock_that_a_rehearsal_names(deployment):
    how = Circumstances(0.5, Basis.CALIBRATED, ("vLLM",), {})
    _, result = await run(deployment, **{VARIABLE: how.to_text()})
    assert (result.plan.time_scale, result.plan.basis, result.plan.simulated) == (0.5, "calibrated", ("vLLM",))
