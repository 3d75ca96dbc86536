"""Canaries of a stack: whom they ask, what they need, and what is deployed."""

import json
from typing import Any

import pytest
from llmd_base.config_maps import PART_LABEL
from llmd_bench.canary_request import from_json
from llmd_oke.program.declare import Rendered, render
from stack_files import existing_pool, model, paths, stack

CANARIES: dict[str, Any] = {"canaries": {}}


def document(topology: str = "2p-tp1-1d-tp2", **changes: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"monitoring": "existing", "canaries": {}, **changes}
    return stack(model(topology), gpuPools=[existing_pool(size=4)], **own)


def objects(rendered: Rendered, kind: str, name: str) -> list[dict[str, Any]]:
    found = [item.inputs for item in rendered.resources if item.type.endswith(f":{kind}")]
    return [inputs for inputs in found if inputs["metadata"]["name"] == name]


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    return render(document(canaries={"everySeconds": 7}))


def test_canary_requests_go_to_the_ports_of_prefill_and_decode_pods_of_a_model_copy(rendered: Rendered):
    (config,) = objects(rendered, "ConfigMap", "canary-gpt-oss-120b")
    request = from_json(config["data"]["request.json"])
    (unit,) = request.units
    assert {role: selector["llm-d.ai/role"] for role, selector in unit.selectors.items()} == {
        "prefill": "prefill",
        "decode": "decode",
    }
    assert (request.ports, request.every_s) == ({"prefill": 8000, "decode": 8200}, 7)
    assert len(request.prompts) == len(set(request.prompts)) == 3


def test_canary_pods_have_a_podmonitor_and_the_label_that_servers_policies_admit(rendered: Rendered):
    (deployment,) = objects(rendered, "Deployment", "canary-gpt-oss-120b")
    assert deployment["spec"]["template"]["metadata"]["labels"]["llmd-oke/canary"] == "gpt-oss-120b"
    assert deployment["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]
    assert PART_LABEL in deployment["spec"]["template"]["metadata"]["labels"]  # by which servers' policies let it in
    assert objects(rendered, "PodMonitor", "llmd-oke-canaries")
    (rules,) = objects(rendered, "PrometheusRule", "llmd-oke")
    assert "CanaryAnswersDiffer" in json.dumps(rules)


def test_a_stack_without_canaries_has_no_canary_objects_and_no_canary_alerts():
    rendered = render(document(canaries=None))
    assert not objects(rendered, "Deployment", "canary-gpt-oss-120b")
    assert "Canary" not in json.dumps([item.inputs for item in rendered.resources])


def test_canary_requests_without_monitoring_in_the_stack_file_are_refused():
    assert paths(**CANARIES) == ["canaries"]


@pytest.mark.parametrize("connector", ["mori-io", "mooncake"])
def test_canaries_are_refused_with_kv_connectors_that_they_cannot_transfer_with(connector: str):
    given = model("1p-tp2-1d-tp2", model="qwen3-32b", engine={"kvCache": {"connector": connector}})
    own = {"release": "llm-d-0.10.0", "override": {"vllmImage": "docker.io/acme/vllm:v0.30.0"}}
    assert paths(given, monitoring="existing", **CANARIES, **own) == ["models[0].engine.kvCache.connector"]
