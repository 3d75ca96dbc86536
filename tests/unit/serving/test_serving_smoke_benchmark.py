"""The smoke benchmark's objects, as data."""

from typing import Any

import pytest
from llmd_oke.catalogue.benchmarks import bench_jobs
from llmd_oke.serving import smoke_benchmark
from llmd_oke.serving.smoke_benchmark import SmokeBenchmarkArgs

ARGS: SmokeBenchmarkArgs = {
    "namespace": "llm-d",
    "model": "gpt",
    "image": "vllm:1",
    "shape": "BM.GPU.MI300X.8",
    "request": "{}",
    "facts": "{}",
    "measured": "abc",
    "timeout_s": 300,
}


def template(**changes: Any) -> Any:
    return smoke_benchmark.job({**ARGS, **changes}, bench_jobs())["spec"]["template"]


@pytest.mark.parametrize("changed", ["request", "measured", "image"])
def test_what_a_smoke_job_measures_changes_its_template_and_what_it_reports_does_not(changed):
    assert template(**{changed: "other"}) != template()
    assert template(facts='{"price": 1}') == template()


def test_the_smoke_job_may_list_pods_and_write_its_own_result():
    pods, result = smoke_benchmark.rules(ARGS)
    assert (pods["resources"], pods["verbs"]) == (["pods"], ["get", "list"])
    assert result["resourceNames"] == ["smoke-gpt"]
    assert (result["resources"], result["verbs"]) == (["configmaps"], ["create", "patch"])


def test_the_smoke_pod_meets_the_restricted_standard_without_gpu_and_rehearsal():
    spec = template()["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    asked = {*container["resources"]["requests"], *container["resources"]["limits"]}
    assert asked == {"cpu", "memory"}
    assert "CIRCUMSTANCES" not in str(template())


def test_the_smoke_job_is_not_retried_and_has_no_ttl():
    spec = smoke_benchmark.job(ARGS, bench_jobs())["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["activeDeadlineSeconds"] > ARGS["timeout_s"]
    assert "ttlSecondsAfterFinished" not in spec
