"""Cold-start times as the cluster tells them."""

from datetime import datetime

import pytest
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Pod
from llmd_oke.operations.passport import cold_start, running_images
from llmd_oke.serving import labels


def pod(created, ready=None):
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": ready}] if ready else []
    return from_dict({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "creationTimestamp": created},
        "status": {"conditions": conditions},
    })  # fmt: skip


FIRST, SECOND = "2026-03-01T00:00:00Z", "2026-03-01T00:00:10Z"


def at(*moments: str) -> list[datetime]:
    """Moments at which benchmarks had their first answer."""
    return [datetime.fromisoformat(f"2026-03-01T{moment}+00:00") for moment in moments]


NEWER, OLDER = pod(SECOND, "2026-03-01T00:01:00Z"), pod(FIRST, "2026-03-01T00:01:00Z")


@pytest.mark.parametrize(
    ("pods", "answers", "ready_s", "first_token_s"),
    [
        pytest.param([NEWER, pod(FIRST, "2026-03-01T00:01:30Z")], at("00:02:00"), 90.0, 120.0, id="the last ready one"),
        pytest.param([pod(FIRST), NEWER], [], None, None, id="one is not ready"),
        pytest.param([pod(FIRST, "2026-03-01T00:05:00Z")], at("00:02:00"), None, 120.0, id="ready after an answer"),
        pytest.param([OLDER], at("01:00:00", "00:02:00"), 60.0, 120.0, id="a later benchmark"),
        pytest.param([NEWER], at("00:00:05", "00:02:00"), 50.0, 110.0, id="answers of former servers"),
    ],
)
def test_a_cold_start_is_timed_to_the_last_ready_server_and_to_the_first_answer(
    pods: list[Pod], answers: list[datetime], ready_s: float | None, first_token_s: float | None
):
    result = cold_start(pods, answers)
    assert (result.ready_s, result.first_token_s) == (ready_s, first_token_s)


def test_servers_created_minutes_apart_or_none_at_all_have_no_cold_start():
    later = pod("2026-03-01T00:05:00Z", "2026-03-01T00:05:41Z")
    assert cold_start([OLDER, later], at("00:06:00")) is None
    assert cold_start([], []) is None


ONE, TWO = (f"sha256:{digit * 64}" for digit in "12")


def running(image: str, *image_ids: str):
    """Return what pods that were asked to run an image are said to run; an empty id is one that is still pulled."""
    return running_images([
        from_dict({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "labels": {labels.ROLE: "decode"}},
            "spec": {"containers": [{"name": "vllm", "image": image}]},
            "status": {"containerStatuses": [status(image, image_id)] if image_id else []},
        })
        for image_id in image_ids
    ])["decode/vllm"]  # fmt: skip


def status(image: str, image_id: str):
    return {"name": "vllm", "image": image, "imageID": image_id, "ready": True, "restartCount": 0}


def test_the_deployment_passport_has_the_configured_and_all_running_vllm_images():
    result = running(f"ghcr.io/llm-d/vllm:v1@{ONE}", f"ghcr.io/llm-d/vllm@{ONE}", "")
    assert (result.asked, result.tag, result.locked) == (f"ghcr.io/llm-d/vllm:v1@{ONE}", "v1", ONE)
    assert result.digests == (ONE,)
    result = running("ghcr.io/llm-d/vllm:v1", f"ghcr.io/llm-d/vllm@{TWO}", f"ghcr.io/llm-d/vllm@{ONE}")
    assert (result.locked, result.digests) == (None, (ONE, TWO))
    assert running("localhost:5000/llm-d/vllm:v1", "rehearsal://localhost:5000/llm-d/vllm:v1").digests == ()
