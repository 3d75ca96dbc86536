"""Jobs that a command watches, through an API server that is not always there."""

import httpx2
import pytest
from experiments_for_tests import api_error
from lightkube.codecs import from_dict
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_oke.operations import jobs
from llmd_oke.operations.jobs import ClusterJobs
from load_jobs import PLACE


def job(condition):
    status = {"conditions": [{"type": condition, "status": "True", "message": "it says so"}]}
    return from_dict({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "status": status})


class Cluster:
    """A cluster whose answers come one after the other; an exception is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def get(self, *_, **__):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def list(self, *_, **__):
        return []


@pytest.fixture(name="watch")
def watch_fixture(monkeypatch):
    monkeypatch.setattr(jobs, "PAUSE_S", 0.0)
    return lambda *answers: ClusterJobs(Cluster(*answers), SilentProgress()).await_end(PLACE, 60.0)


def test_only_a_long_outage_of_the_api_server_ends_the_wait_for_a_job(watch, monkeypatch):
    watch(httpx2.ConnectError("refused"), httpx2.ReadTimeout("slow"), job("Complete"))
    monkeypatch.setattr(jobs, "OUTAGE_S", -1.0)
    with pytest.raises(KitError, match="refused"):
        watch(httpx2.ConnectError("refused"))


def test_a_refusal_and_a_failure_end_the_wait_for_a_job_with_their_messages(watch):
    with pytest.raises(KitError, match="forbidden"):
        watch(api_error(403, "forbidden"))
    with pytest.raises(KitError, match="it says so"):
        watch(job("Failed"), job("Failed"))


def test_a_job_that_takes_too_long_is_reported_with_what_its_containers_wait_for(monkeypatch):
    state = {"waiting": {"reason": "ErrImagePull", "message": "failed to authorize"}}
    status = {"containerStatuses": [{"name": "a", "image": "a", "imageID": "", "restartCount": 0, "ready": False}]}
    status["containerStatuses"][0]["state"] = state
    pod = from_dict({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job-a"}, "status": status})
    cluster = Cluster(job("Suspended"))
    monkeypatch.setattr(cluster, "list", lambda *_, **__: [pod])
    with pytest.raises(KitError, match="ErrImagePull: failed to authorize"):
        ClusterJobs(cluster, SilentProgress()).await_end(PLACE, -1.0)
