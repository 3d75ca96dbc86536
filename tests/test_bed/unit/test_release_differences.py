from typing import Any

import pytest
from llmd_oke import config, planning
from llmd_oke.planning import Plan
from llmd_oke.planning.releases import with_router
from llmd_rehearsal.release_differences import release_differences
from stack_files import model, stack


def plan(release: str, **changes: object) -> Plan:
    return planning.plan(with_router(config.validate(stack(model(**changes))), release))


@pytest.fixture(scope="module")
def differences() -> Any:
    return release_differences(plan("llm-d-0.9.0"), plan("llm-d-0.6.0"))


def test_differing_images_arguments_and_replicas_of_two_llm_d_releases_are_listed(differences: Any):
    paths = {difference.name: {field.path for field in difference.fields} for difference in differences}
    assert {"spec.replicas", "spec.template.spec.containers[epp].image"} <= paths["Deployment gpt-oss-120b-epp"]
    sidecar = paths["Container routing-proxy of gpt-oss-120b-decode"]
    assert "image" in sidecar
    assert any(path.startswith("args[") for path in sidecar)


def test_kubernetes_objects_that_only_one_of_two_llm_d_releases_has_are_summarized(differences: Any):
    output = [str(item) for item in differences]
    assert "Role gpt-oss-120b-epp-leader-election: left out" in output
    assert "InferencePool gpt-oss-120b: spec.appProtocol" in output


def test_a_rehearsal_of_the_own_release_or_without_routers_lists_no_differences():
    assert release_differences(plan("llm-d-0.9.0"), plan("llm-d-0.9.0")) == ()
    plain = {"topology": "agg-tp1-8r", "router": {"mode": "none"}}
    assert release_differences(plan("llm-d-0.9.0", **plain), plan("llm-d-0.6.0", **plain)) == ()
