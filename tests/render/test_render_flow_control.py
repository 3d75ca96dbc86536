"""Flow control as it is deployed: the picker's config, InferenceObjectives, and who tells the picker of clients."""

import json
from typing import Any

import pytest
import yaml
from llmd_oke.catalogue.endpoint_pickers import endpoint_picker
from llmd_oke.testing import Rendered
from stack_files import model, stack

KEYS = {"chat": "sk-chat-Qm7xT2vKd9RwZb4H", "crawler": "sk-crawler-8Hq2LmZx7PdWvN3c"}
DOOR = {
    "authentication": {"kind": "api-keys"},
    "uncheckedPods": "accepted",
    "priorities": {"chat": 100, "crawler": -10},
}
FLOW = {"queueDepthThreshold": 2, "priorityBands": [{"priority": -10, "maxMib": 1}]}
RELEASES = {"llm-d-0.6.0": "v0.7.1", "llm-d-0.7.0": "v0.8.0", "llm-d-0.9.0": "v0.10.0", "llm-d-0.10.0": "v0.11.0"}


def deployed(rendered: Any, release: str = "llm-d-0.9.0", door: Any = DOOR, **router: Any) -> Rendered:
    models = [model("1p-tp1-1d-tp1", router={"flowControl": FLOW, **router})]
    changes = {} if door is None else {"frontDoor": door}
    return rendered(stack(*models, release=release, **changes), frontDoorKeys=json.dumps(KEYS))


def picker_config(result: Rendered) -> dict[str, Any]:
    (text,) = named(result, "-epp")["data"].values()
    return yaml.safe_load(text)


def named(result: Rendered, end: str) -> dict[str, Any]:
    (found,) = [m for m in result.manifests() if m["kind"] == "ConfigMap" and m["metadata"]["name"].endswith(end)]
    return found


def objectives(result: Rendered) -> dict[str, dict[str, Any]]:
    return {m["metadata"]["name"]: m for m in result.manifests() if m["kind"] == "InferenceObjective"}


@pytest.mark.parametrize("release", RELEASES)
def test_every_releases_picker_can_read_its_flow_control_config(rendered: Any, release: str):
    picker, config = endpoint_picker(RELEASES[release]), picker_config(deployed(rendered, release))
    assert list(picker.refusals(config)) == []
    assert picker.holds_back(config)
    bands = config["flowControl"]["priorityBands"]
    assert [band["priority"] for band in bands] == [100, 0, -10]
    assert [band.get("maxBytes") for band in bands] == [None, None, 2**20]
    assert {band["fairnessPolicyRef"] for band in bands} == {"round-robin-fairness-policy"}


def test_an_older_picker_gets_thresholds_where_later_ones_name_a_saturation_detector(rendered: Any):
    assert picker_config(deployed(rendered, "llm-d-0.6.0"))["saturationDetector"] == {"queueDepthThreshold": 2}
    later = picker_config(deployed(rendered))
    assert later["flowControl"]["saturationDetector"] == {"pluginRef": "utilization-detector"}
    assert {"type": "utilization-detector", "parameters": {"queueDepthThreshold": 2}} in later["plugins"]


def test_each_client_priority_becomes_an_inferenceobjective_of_the_inferencepool(rendered: Any):
    found = objectives(deployed(rendered))
    (pool,) = [m for m in deployed(rendered).manifests() if m["kind"] == "InferencePool"]
    unit = pool["metadata"]["name"]
    reference = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": unit}
    assert {name: m["spec"] for name, m in found.items()} == {
        f"{unit}-priority-100": {"priority": 100, "poolRef": reference},
        f"{unit}-priority-minus-10": {"priority": -10, "poolRef": reference},
    }


@pytest.mark.parametrize(("release", "prefix"), [("llm-d-0.6.0", "x-gateway-"), ("llm-d-0.10.0", "x-llm-d-")])
def test_the_routers_envoy_passes_the_clients_priority_and_name_to_the_picker(rendered: Any, release: str, prefix: str):
    result = deployed(rendered, release)
    text = json.dumps(named(result, "-envoy")["data"])
    assert f"{prefix}inference-objective" in text
    assert f"{prefix}inference-fairness-id" in text
    assert all(name in text for name in objectives(result))


def test_a_client_cannot_set_its_own_priority_at_the_front_door(rendered: Any):
    result = deployed(rendered)
    (config,) = [
        m
        for m in result.manifests()
        if m["kind"] == "ConfigMap"
        and m["metadata"]["name"].startswith("front-door")
        and not m["metadata"]["name"].endswith("-traffic")
    ]
    (text,) = config["data"].values()
    filters = json.loads(text)["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    cleaning = json.dumps(filters["http_filters"][0])
    names = [item["name"] for item in filters["http_filters"]]
    assert "x-llmd-oke-priority" in cleaning
    assert names.index("client-priorities") > names.index("authentication")


@pytest.mark.parametrize("door", [None, {}])
def test_without_authenticated_clients_no_fairness_id_is_sent_to_the_picker(rendered: Any, door: Any):
    result = deployed(rendered, door=door, flowControl={})
    assert "inference-fairness-id" not in json.dumps(named(result, "-envoy")["data"])
    assert objectives(result) == {}


@pytest.mark.parametrize("door", [None, DOOR])
def test_a_request_that_flow_control_refuses_is_not_retried(rendered: Any, door: Any):
    held, plain = deployed(rendered, door=door, flowControl={}), rendered(stack(model("1p-tp1-1d-tp1")))
    assert "retriable_status_codes" in json.dumps([m for m in plain.manifests() if m["kind"] == "ConfigMap"])
    assert "retriable_status_codes" not in json.dumps([m for m in held.manifests() if m["kind"] == "ConfigMap"])
