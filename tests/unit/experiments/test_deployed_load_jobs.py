"""A load that pods send together: what is left of it where some of them fail or all are told to end."""

from collections.abc import Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast

import httpx2
import pytest
from experiments_for_tests import api_error
from lightkube.codecs import from_dict
from llmd_base.config_maps import COUNT_ANNOTATION, config_maps
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_bench.jobs.load import ready_config_map
from llmd_bench.load.pod_load import pack
from llmd_bench.load.records import Health, MeasuredWindow
from llmd_bench.load.stages import LoadStage, StageResult
from llmd_bench.load.workload import ConstantRate
from llmd_bench.run_context import RunContext
from llmd_oke.operations import jobs
from llmd_oke.operations.load import INDEX_ANNOTATION, LoadJobs
from load_jobs import PLACE, REQUEST

WINDOW, STARTED = MeasuredWindow(0, 5), datetime(2026, 1, 1, tzinfo=UTC)
RESULT = StageResult(LoadStage(ConstantRate(4)), (), Health(), WINDOW, started=STARTED)


def pod(index: int, phase: str, reason: str | None = None) -> dict[str, Any]:
    always = {"name": "load", "image": "i", "imageID": "i", "ready": False, "restartCount": 0}
    ended = {**always, "state": {"terminated": {"exitCode": 1, "reason": reason}}} if reason else None
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"job-{index}", "annotations": {INDEX_ANNOTATION: str(index)}},
        "status": {"phase": phase, "containerStatuses": [ended] if ended else []},
    }


class Cluster:
    """A Job whose pods have run, with the results of some of them; `ends` is how the Job ends, or an interrupt."""

    def __init__(self, results: Sequence[int], pods: Sequence[dict[str, Any]], ends: str | BaseException) -> None:
        self.suspended = self.deleted = False
        self.refusals: list[Exception] = []
        self.made: list[Any] = []
        self.later: list[dict[str, Any]] = []
        self._ends, self._pods = ends, pods
        parts = pack(RunContext(), [RESULT])
        made = [config_maps(parts, [REQUEST.part_name(index, 0)], "llm-d", "job", "u") for index in results]
        self.config_maps = {item["metadata"]["name"]: item for (item,) in made}
        ready = [ready_config_map(REQUEST, index, "u") for index in range(REQUEST.parallelism)]
        self.config_maps |= {item["metadata"]["name"]: item for item in ready}

    def get(self, _: object, name: str, **__: object) -> Any:
        if name == REQUEST.job and REQUEST.start_name not in {item.metadata.name for item in self.made}:
            return from_dict({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}})
        if name == REQUEST.job:
            if isinstance(self._ends, BaseException):
                raise self._ends
            status = {"conditions": [{"type": self._ends, "status": "True", "message": "1 failed index"}]}
            return from_dict({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "status": status})
        if name in self.config_maps:
            return from_dict(self.config_maps[name])
        raise api_error(404, "not found")

    def list(self, *_: object, **__: object) -> list[Any]:
        pods, self._pods = self._pods, [item for item in self._pods if item["status"]["phase"] != "Running"]
        return [from_dict(item) for item in pods]

    def create(self, made: object, **_: object) -> object:
        self.made.append(made)
        self._pods = [*self._pods, *self.later]
        return made

    def delete(self, *_: object, **__: object) -> None:
        self.deleted = True

    def patch(self, _: object, __: str, change: dict[str, Any], **___: object) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.suspended = change["spec"]["suspend"]


class Pods(LoadJobs):
    """Jobs whose pods run already."""

    def await_pods(self, *_: object) -> None:
        """Tell that the pods run."""


class Jobs(Pods):
    """Jobs that are there already."""

    @contextmanager
    def running(self, *_: object):
        yield "u"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PAUSE_S", 0.0)


def send(cluster: Any):
    with Jobs(cluster, SilentProgress()).send(PLACE, REQUEST) as sent:
        return sent


def test_a_failed_or_lost_load_generator_pod_is_reported_beside_other_pods_results():
    cluster = Cluster([0, 2], [], "Failed")
    cluster.later = [pod(1, "Failed", "OOMKilled")]
    sent = send(cluster)
    assert (len(sent.pods), sent.missing) == (2, {1: "OOMKilled, exit code 1"})
    assert send(Cluster([0, 1], [pod(0, "Succeeded")], "Failed")).missing == {2: "it is gone"}


def test_on_interrupt_load_generator_pods_publish_what_they_have_measured():
    cluster = Cluster([0, 1, 2], [], KeyboardInterrupt())
    cluster.later = [pod(index, "Running") for index in range(3)]
    sent = send(cluster)
    assert (len(sent.pods), sent.interrupted, cluster.suspended) == (3, True, True)


def test_a_load_generator_pods_result_that_lacks_a_configmap_counts_as_missing():
    cluster = Cluster([0, 1, 2], [], "Failed")
    cluster.later = [pod(1, "Failed", "Error")]
    cluster.config_maps[REQUEST.part_name(1, 0)]["metadata"]["annotations"] = {COUNT_ANNOTATION: "2"}
    assert list(send(cluster).missing) == [1]


@pytest.mark.parametrize(
    "refusals",
    [[httpx2.ConnectError("refused"), httpx2.ReadTimeout("slow")], [api_error(403, "forbidden")]],
    ids=["away for a moment", "refused"],
)
def test_a_failed_request_to_stop_load_generator_pods_loses_no_result(refusals: list[Exception]):
    cluster = Cluster([0, 1, 2], [], KeyboardInterrupt())
    cluster.refusals = refusals
    assert len(send(cluster).pods) == 3


def test_load_generator_pods_get_the_start_signal_once_all_of_them_are_ready():
    cluster = Cluster([0, 1, 2], [], "Complete")
    late = cluster.config_maps.pop(REQUEST.ready_name(1))
    looks: list[str] = []

    def look(_: object, name: str, **__: object) -> Any:
        looks.append(name)
        if name == REQUEST.ready_name(1) and looks.count(name) == 3:
            assert not cluster.made
            cluster.config_maps[REQUEST.ready_name(1)] = late
        return Cluster.get(cluster, _, name)

    cluster.get = look
    assert len(send(cluster).pods) == 3
    assert looks.count(REQUEST.ready_name(0)) == 1


def test_a_load_generator_job_without_any_result_is_an_error_however_it_ended():
    with pytest.raises(KitError, match="1 failed index"):
        send(Cluster([], [], "Failed"))
    with pytest.raises(KeyboardInterrupt):
        send(Cluster([], [], KeyboardInterrupt()))
    with pytest.raises(KitError, match=f"Job {REQUEST.job} failed"):
        send(Cluster([], [pod(0, "Failed", "Error")], "Failed"))


def test_a_load_starts_by_a_configmap_without_a_time_and_its_job_is_deleted_last():
    cluster = Cluster([0, 1, 2], [], "Complete")
    send(cluster)
    (start,) = cluster.made
    assert (start.metadata.name, start.data) == (REQUEST.start_name, None)
    cluster = Cluster([0, 1, 2], [], "Complete")
    with Pods(cast("Any", cluster), SilentProgress()).send(PLACE, REQUEST) as sent:
        assert (len(sent.pods), cluster.deleted) == (3, False)
    assert cluster.deleted
