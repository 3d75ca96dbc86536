"""The smoke benchmark in a stack: what it waits for, and what makes it run again."""

import json

import pytest
from render_support import env, vllm
from stack_files import read

JOB = "gpt-oss-120b-smoke"


def template(rendered):
    return rendered.kubernetes("Job", JOB)["spec"]["template"]


def test_the_smoke_job_is_created_after_everything_that_serves_a_model(stack):
    serving = {
        resource.urn
        for resource in stack.resources
        if resource.type in {"kubernetes:apps/v1:Deployment", "kubernetes:core/v1:Service"}
    }
    for benchmark in stack.of_type("llmd-oke:index:SmokeBenchmark"):
        assert serving <= set(benchmark.depends_on)


def test_no_resource_depends_on_the_smoke_job(rehearsal):
    own = {resource.urn for resource in rehearsal.resources if "SmokeBenchmark" in resource.urn}
    others = [resource for resource in rehearsal.resources if resource.urn not in own]
    assert own
    assert not [resource.name for resource in others if own & set(resource.depends_on)]


def test_the_smoke_job_uses_the_image_of_the_servers(rehearsal):
    (container,) = template(rehearsal)["spec"]["containers"]
    servers = json.loads(program(rehearsal)["request.json"])["topology"]["servers"]
    assert container["image"].partition("@")[0] == servers[0]["image"]


def test_server_settings_in_the_smoke_jobs_request_are_those_of_the_containers(rehearsal, guide, baseline):
    for stack in (rehearsal, guide, baseline):
        for servers in json.loads(program(stack)["request.json"])["topology"]["servers"]:
            container = vllm(stack, f"gpt-oss-120b-{servers['role']}")
            assert servers["args"] == {"args": container["args"]}
            assert servers["env"] == env(container)


@pytest.mark.parametrize("where", ["client", "none"])
def test_a_stack_whose_benchmark_is_disabled_has_no_smoke_job(varied, where):
    assert not varied(stack={"smoke": {"where": where}}).of_type("llmd-oke:index:SmokeBenchmark")


@pytest.mark.parametrize(
    "changes",
    [
        {"topology": "4p-tp1-2d-tp2"},
        {"engine": {"env": {"VLLM_X": "1"}}},
        {"router": {"nonCachedTokens": 64}},
        {"stack": {"smoke": {"concurrency": 2}}},
    ],
    ids=["topology", "environment", "router", "benchmark"],
)
def test_a_changed_topology_environment_router_or_benchmark_reruns_the_smoke_job(varied, changes):
    assert template(varied(**changes)) != template(varied(stack={"smoke": {}}))


def test_the_smoke_job_evaluates_accuracy_again_for_each_quick_reduce_level(varied):
    plain, *overridden = (
        varied(topology="2p-tp2-2d-tp2", stack={"override": {"quickReduce": level}})
        for level in ("NONE", "INT4", "INT6")
    )
    requests = [json.loads(program(made)["request.json"]) for made in (plain, *overridden)]
    assert [request["thresholds"]["min_accuracy"] for request in requests] == [None, 0.95, 0.95]
    assert [bool(request["questions"]) for request in requests] == [False, True, True]
    assert template(overridden[0]) != template(overridden[1])


def test_the_smoke_job_asks_random_weights_no_questions(rendered):
    stack = {**read("rehearsal"), "smoke": {"thresholds": {"minAccuracy": 0.95}}}
    asked = [
        json.loads(program(made)["request.json"]) for made in (rendered(stack), rendered(stack, randomWeights="true"))
    ]
    assert [bool(request["questions"]) for request in asked] == [True, False]
    assert asked[1]["thresholds"]["min_accuracy"] is None


def test_changes_that_serving_does_not_depend_on_do_not_rerun_the_smoke_job(varied):
    other_targets = varied(stack={"smoke": {}}, slo={"ttftMs": 1000, "itlMs": 20})
    assert template(other_targets) == template(varied(stack={"smoke": {}}))


def test_pulumi_names_the_smoke_job_and_replaces_a_failed_one(rehearsal):
    job = rehearsal.kubernetes_resource("Job", JOB)
    assert job.inputs["metadata"]["annotations"]["pulumi.com/replaceUnready"] == "true"
    assert int(job.timeouts["create"].removesuffix("s")) > job.inputs["spec"]["activeDeadlineSeconds"]


def test_the_configmap_of_the_benchmarks_program_is_deleted_before_its_replacement(rehearsal):
    (found,) = [item for item in rehearsal.of_type("kubernetes:core/v1:ConfigMap") if item.name == f"{JOB}-program"]
    assert found.delete_before_replace


def program(rendered):
    (matches,) = [m for m in rendered.manifests() if m["kind"] == "ConfigMap" and "request.json" in m.get("data", {})]
    return matches["data"]
