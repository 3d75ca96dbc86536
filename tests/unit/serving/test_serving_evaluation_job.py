"""The Job of a published evaluation."""

import json
import re
from dataclasses import replace

import pytest
from llmd_bench.jobs import package as package_job
from llmd_oke.catalogue.benchmarks import bench_jobs, evals, requirements
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.shapes import shape
from llmd_oke.serving.jobs import Evaluation, JobSettings, evaluation_job, evaluation_objects

PLACE = JobSettings("llm-d", "eval-gpqa-1", job_images().python, shape("BM.GPU.MI300X.8"))


def evaluation(name="gpqa"):
    return Evaluation(name, evals().packages[name], "http://gpt.llm-d.svc.cluster.local", "openai/gpt-oss-120b", 64)


def container(name="gpqa"):
    (only,) = evaluation_job(PLACE, evaluation(name), bench_jobs(), 600)["spec"]["template"]["spec"]["containers"]
    return only


@pytest.mark.parametrize("name", sorted(evals().packages))
def test_an_evaluation_package_sends_requests_to_the_router(name):
    spec = json.loads(next(e["value"] for e in container(name)["env"] if e["name"] == package_job.SPEC_VARIABLE))
    called = " ".join(spec["program"])
    assert "http://gpt.llm-d.svc.cluster.local/v1" in called
    assert "openai/gpt-oss-120b" in called
    assert "64" in called
    assert "{" not in called
    assert spec["reader"] in package_job.READERS


@pytest.mark.parametrize("name", sorted(evals().packages))
def test_evaluation_packages_are_installed_by_hash_only(name):
    (program,) = evaluation_objects(PLACE, evaluation(name), "uid")
    lock = program["data"]["requirements.lock"]
    pinned = re.findall(r"^[a-z0-9].*==", lock, re.MULTILINE)
    assert len(pinned) == len(re.findall(r"^\S+==\S+ \\\n    --hash=sha256:", lock, re.MULTILINE))
    assert "://" not in lock
    assert sum(map(len, program["data"].values())) < 2**20


def test_an_evaluation_pod_has_no_permissions_no_gpu_and_mounts_only_its_program():
    pod = evaluation_job(PLACE, evaluation(), bench_jobs(), 600)["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert "amd.com/gpu" not in json.dumps([item["resources"] for item in pod["containers"]])
    (program,) = evaluation_objects(PLACE, evaluation(), "uid")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(volumes) == {mount["name"] for mount in container()["volumeMounts"]}
    assert volumes["program"]["configMap"]["name"] == program["metadata"]["name"]


def test_evaluation_packages_are_locked_to_the_versions_of_measured_accuracy():
    for package in evals().packages.values():
        name, version = package.source.split(",")[0].split()
        assert re.search(
            rf"^{name.replace('_', '-')}(\[\S+\])?=={re.escape(version)} ", requirements(package), re.MULTILINE
        )


def test_an_evaluation_pod_tolerates_taints_of_the_shape_and_of_the_stack_file():
    place = replace(PLACE, node_taints=({"key": "team", "value": "search", "effect": "NoSchedule"},))
    pod = evaluation_job(place, evaluation(), bench_jobs(), 600)["spec"]["template"]["spec"]
    assert [item["key"] for item in pod["tolerations"]] == ["amd.com/gpu", "team"]
