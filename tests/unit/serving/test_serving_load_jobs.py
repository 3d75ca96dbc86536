"""Jobs that send load, as data."""

from dataclasses import replace

from llmd_base.config_maps import MAX_CHUNKS
from llmd_oke.catalogue.benchmarks import bench_jobs, inference_perf
from llmd_oke.serving import jobs
from load_jobs import PLACE, REQUEST


def of_kind(objects, kind):
    return [item for item in objects if item["kind"] == kind]


def test_a_load_generator_job_starts_suspended_retries_no_pod_and_has_a_ttl():
    spec = jobs.load_job(PLACE, REQUEST, bench_jobs())["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert (spec["backoffLimitPerIndex"], spec["backoffLimit"]) == (0, 3)
    assert jobs.tool_job(PLACE, inference_perf(), bench_jobs(), 60)["spec"]["backoffLimit"] == 0
    assert spec["suspend"] is True
    assert spec["ttlSecondsAfterFinished"] == jobs.KEPT_S


def test_all_objects_of_load_generator_pods_are_owned_by_their_job():
    objects = [*jobs.load_objects(PLACE, REQUEST, "u"), *jobs.tool_objects(PLACE, "", "u")]
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in objects} == {"u"}


def test_load_generator_pods_may_only_write_results_and_read_the_start_configmap():
    (role,) = of_kind(jobs.load_objects(PLACE, REQUEST, "u"), "Role")
    written, read = role["rules"]
    assert len(written["resourceNames"]) == 3 * (MAX_CHUNKS + 1)  # its parts, and that it is ready
    assert written["verbs"] == ["create", "patch"]
    assert (read["resourceNames"], read["verbs"]) == (["load-gpt-1-start"], ["get"])


def test_a_load_tools_files_are_published_only_after_the_tool_has_ended():
    spec = jobs.tool_job(PLACE, inference_perf(), bench_jobs(), 60)["spec"]["template"]["spec"]
    assert [item["name"] for item in spec["initContainers"]] == ["inference-perf"]
    assert [item["name"] for item in spec["containers"]] == ["publish"]


def test_a_load_tools_image_is_pinned_by_digest():
    assert "@sha256:" in inference_perf().image.pinned


def test_load_generator_pods_tolerate_taints_of_the_shape_and_of_the_stack_file():
    of_a_team = {"key": "team", "value": "search", "effect": "NoSchedule"}
    place = replace(PLACE, node_taints=(of_a_team,))
    for made in (
        jobs.load_job(place, REQUEST, bench_jobs()),
        jobs.tool_job(place, inference_perf(), bench_jobs(), 60),
    ):
        tolerated = made["spec"]["template"]["spec"]["tolerations"]
        assert [item["key"] for item in tolerated] == ["amd.com/gpu", "team"]
