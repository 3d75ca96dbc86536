"""Cold-start times as the cluster tells them."""

from lightkube.codecs import from_dict
from llmd_oke.experiments.deployed.passport import cold_start


def pod(created, ready=None):
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": ready}] if ready else []
    return from_dict({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "creationTimestamp": created},
        "status": {"conditions": conditions},
    })  # fmt: skip


FIRST, SECOND = "2026-03-01T00:00:00Z", "2026-03-01T00:00:10Z"


def test_it_counts_from_the_first_pod_to_the_last_ready_one_and_to_the_first_answer():
    pods = [pod(SECOND, "2026-03-01T00:01:00Z"), pod(FIRST, "2026-03-01T00:01:30Z")]
    found = cold_start(pods, "2026-03-01T00:02:00+00:00")
    assert (found.ready_s, found.first_token_s) == (90.0, 120.0)


def test_a_pod_that_is_not_ready_leaves_the_moment_open():
    found = cold_start([pod(FIRST), pod(SECOND, "2026-03-01T00:01:00Z")], None)
    assert (found.ready_s, found.first_token_s) == (None, None)


def test_without_pods_there_is_nothing_to_say():
    assert cold_start([], None) is None


def test_a_pod_that_lost_its_readiness_since_is_not_taken_for_a_slow_one():
    found = cold_start([pod(FIRST, "2026-03-01T00:05:00Z")], "2026-03-01T00:02:00+00:00")
    assert (found.ready_s, found.first_token_s) == (None, 120.0)
