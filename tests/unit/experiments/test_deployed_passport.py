"""Cold-start times as the cluster tells them."""

from datetime import datetime

from lightkube.codecs import from_dict
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


def test_a_cold_start_is_timed_to_the_last_ready_server_and_to_the_first_answer():
    pods = [pod(SECOND, "2026-03-01T00:01:00Z"), pod(FIRST, "2026-03-01T00:01:30Z")]
    result = cold_start(pods, at("00:02:00"))
    assert (result.ready_s, result.first_token_s) == (90.0, 120.0)


def test_a_server_that_is_not_ready_leaves_the_cold_start_unknown():
    result = cold_start([pod(FIRST), pod(SECOND, "2026-03-01T00:01:00Z")], [])
    assert (result.ready_s, result.first_token_s) == (None, None)


def test_a_deployment_without_servers_has_no_cold_start():
    assert cold_start([], []) is None


def test_a_ready_time_after_the_first_answer_is_not_taken_for_a_cold_start():
    result = cold_start([pod(FIRST, "2026-03-01T00:05:00Z")], at("00:02:00"))
    assert (result.ready_s, result.first_token_s) == (None, 120.0)


def test_servers_created_minutes_apart_do_not_count_as_one_cold_start():
    old, new = pod(FIRST, "2026-03-01T00:01:00Z"), pod("2026-03-01T00:05:00Z", "2026-03-01T00:05:41Z")
    assert cold_start([old, new], at("00:06:00")) is None


def test_a_later_benchmark_does_not_lengthen_the_recorded_cold_start():
    result = cold_start([pod(FIRST, "2026-03-01T00:01:00Z")], at("01:00:00", "00:02:00"))
    assert result.first_token_s == 120.0


def test_answers_of_former_servers_do_not_count_in_a_cold_start():
    result = cold_start([pod(SECOND, "2026-03-01T00:01:00Z")], at("00:00:05", "00:02:00"))
    assert result.first_token_s == 110.0


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


def test_the_deployment_passport_has_the_configured_and_the_running_vllm_image():
    result = running(f"ghcr.io/llm-d/vllm:v1@{ONE}", f"ghcr.io/llm-d/vllm@{ONE}", "")
    assert (result.asked, result.tag, result.locked) == (f"ghcr.io/llm-d/vllm:v1@{ONE}", "v1", ONE)
    assert result.digests == (ONE,)


def test_the_deployment_passport_lists_all_running_images_of_one_tag_by_digest():
    result = running("ghcr.io/llm-d/vllm:v1", f"ghcr.io/llm-d/vllm@{TWO}", f"ghcr.io/llm-d/vllm@{ONE}")
    assert (result.locked, result.digests) == (None, (ONE, TWO))


def test_an_image_id_without_digest_is_not_recorded_as_running():
    assert running("localhost:5000/llm-d/vllm:v1", "rehearsal://localhost:5000/llm-d/vllm:v1").digests == ()
