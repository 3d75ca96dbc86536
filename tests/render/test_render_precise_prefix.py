"""Precise prefixes as they are deployed: what servers report, who reads it, and what the picker takes it for."""

import json
from typing import Any

import pytest
import yaml
from llmd_base.errors import InvalidStack
from llmd_oke import catalogue, planning
from llmd_oke.catalogue.endpoint_pickers import endpoint_picker
from llmd_oke.testing import Rendered
from stack_files import existing_pool, model, stack

RELEASES = {"llm-d-0.9.0": "v0.10.0", "llm-d-0.10.0": "v0.11.0"}
ROUTER = {"profile": "precise-prefix", "decider": "always"}
TOPOLOGIES = {"2p-tp1-2d-tp1": ("prefill", "decode"), "agg-tp1-2r": ("aggregated",)}


def deployed(rendered: Any, release: str, topology: str = "2p-tp1-2d-tp1") -> Rendered:
    router = ROUTER if "d-" in topology else {"profile": "precise-prefix"}
    return rendered(stack(model(topology, router=router), release=release))


def picker_config(result: Rendered) -> dict[str, Any]:
    (text,) = (
        text
        for m in result.manifests()
        if m["kind"] == "ConfigMap" and m["metadata"]["name"].endswith("-epp")
        for text in m["data"].values()
    )
    return yaml.safe_load(text)


def servers(result: Rendered, topology: str) -> list[dict[str, Any]]:
    """Containers of vLLM."""
    ends = tuple(f"-{role}" for role in TOPOLOGIES[topology])
    deployments = [m for m in result.manifests() if m["kind"] == "Deployment" and m["metadata"]["name"].endswith(ends)]
    return [c for m in deployments for c in m["spec"]["template"]["spec"]["containers"] if c["name"] == "vllm"]


def parameters(config: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [plugin["parameters"] for plugin in config["plugins"] if plugin["type"] == kind]
    return found


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("release", RELEASES)
def test_the_picker_subscribes_to_kv_cache_events_of_servers_that_publish_them(
    rendered: Any, release: str, topology: str
):
    result = deployed(rendered, release, topology)
    config, picker = picker_config(result), endpoint_picker(RELEASES[release])
    assert list(picker.own_refusals(config, disaggregated=topology != "agg-tp1-2r")) == []
    producer = parameters(config, "precise-prefix-cache-producer")
    made = parameters(config, "token-producer")
    for container in servers(result, topology):
        arguments = dict(word.partition("=")[::2] for word in container["args"])
        events = json.loads(arguments["--kv-events-config"])
        port = producer["kvEventsConfig"]["podDiscoveryConfig"]["socketPort"]
        assert events["endpoint"] == f"tcp://*:{port}"
        assert events["topic"] == f"kv@$(POD_IP):8000@{made['modelName']}"
        assert int(arguments["--block-size"]) == producer["tokenProcessorConfig"]["blockSizeTokens"]
        assert {"name": "kv-events", "containerPort": port, "protocol": "TCP"} in container["ports"]
        assert {"POD_IP"} <= {entry["name"] for entry in container["env"]}
        assert ("--enable-scale-out" in arguments) == (release == "llm-d-0.10.0")


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_picker_has_prompts_tokenized_by_the_servers_that_prefill_them(rendered: Any, topology: str):
    result = deployed(rendered, "llm-d-0.10.0", topology)
    url = parameters(picker_config(result), "token-producer")["vllm"]["url"]
    (service,) = [
        m for m in result.manifests() if m["kind"] == "Service" and url == f"http://{m['metadata']['name']}:8000"
    ]
    expected = "prefill" if topology == "2p-tp1-2d-tp1" else "prefill-decode"
    assert service["spec"]["selector"]["llm-d.ai/role"] == expected


def test_every_picker_plugin_that_uses_prefix_matches_names_their_producer_plugin(rendered: Any):
    config = picker_config(deployed(rendered, "llm-d-0.10.0"))
    for kind in ("prefix-cache-affinity-filter", "inflight-load-producer"):
        assert parameters(config, kind)["prefixMatchInfoProducerName"] == "precise-prefix-cache-producer"
    (source,) = config["dataLayer"]["sources"]
    assert source["extractors"] == [{"pluginRef": "precise-prefix-cache-producer"}]


def test_only_router_pods_may_connect_to_the_kv_cache_event_ports_of_servers(rendered: Any):
    result = deployed(rendered, "llm-d-0.10.0")
    policies = [m for m in result.manifests() if m["kind"] == "NetworkPolicy"]
    rules = [
        rule
        for m in policies
        for rule in m["spec"].get("ingress", [])
        if 5556 in [port["port"] for port in rule.get("ports", [])]
    ]
    assert len(rules) == 2
    for rule in rules:
        (source,) = rule["from"]
        assert source["podSelector"]["matchLabels"]["llmd-oke/router"] == "true"
    sent = [rule for m in policies for rule in m["spec"].get("egress", []) if "5556" in json.dumps(rule)]
    assert len(sent) == 1


def test_servers_publish_kv_cache_events_if_the_stack_files_picker_config_uses_them(rendered: Any):
    config = {
        "plugins": [
            {"type": "token-producer", "parameters": {"modelName": "{model}", "vllm": {"url": "{render_url}"}}},
            {"type": "endpoint-notification-source"},
            {
                "type": "precise-prefix-cache-producer",
                "parameters": {
                    "tokenProcessorConfig": {"blockSizeTokens": "{block_size}"},
                    "kvEventsConfig": {"podDiscoveryConfig": {"socketPort": "{events_port}"}},
                },
            },
            {
                "type": "prefix-cache-scorer",
                "parameters": {"prefixMatchInfoProducerName": "precise-prefix-cache-producer"},
            },
        ],
        "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "prefix-cache-scorer"}]}],
    }
    result = rendered(stack(model("agg-tp1-2r", router={"config": config})))
    written = picker_config(result)
    assert parameters(written, "token-producer")["vllm"]["url"].endswith("-render:8000")
    producer = parameters(written, "precise-prefix-cache-producer")
    (first, *_) = servers(result, "agg-tp1-2r")
    arguments = dict(word.partition("=")[::2] for word in first["args"])
    assert producer["tokenProcessorConfig"]["blockSizeTokens"] == int(arguments["--block-size"])
    assert "--kv-events-config" in arguments


@pytest.mark.parametrize(
    ("topology", "changes", "path", "words"),
    [
        ("2p-tp1-2d-tp1", {"router": {"profile": "precise-prefix"}}, "models[0].router.decider", "approximate index"),
        ("agg-tp1dp2-1r", {"router": {"profile": "precise-prefix"}}, "models[0].router.profile", "a port of its own"),
        (
            "agg-tp1-2r",
            {"router": {"profile": "precise-prefix"}, "engine": {"extraArgs": ["--no-enable-prefix-caching"]}},
            "models[0].router.profile",
            "nothing to report",
        ),
        (
            "agg-tp1-2r",
            {"router": {"profile": "precise-prefix"}, "engine": {"extraArgs": ["--kv-events-config={}"]}},
            "models[0].router.profile",
            "where and under which name",
        ),
        (
            "agg-tp4-1r",
            {"router": {"profile": "precise-prefix"}, "model": "qwen3-next-80b-a3b-thinking"},
            "models[0].router.profile",
            "linear attention",
        ),
    ],
)
def test_a_picker_config_that_would_receive_no_kv_cache_events_is_refused(
    topology: str, changes: dict[str, Any], path: str, words: str
):
    with pytest.raises(InvalidStack) as refused:
        planning.plan_object(stack(model(topology, **changes), gpuPools=[existing_pool(size=4)]))
    said = {problem.path: str(problem) for problem in refused.value.problems}
    assert list(said) == [path]
    assert words in said[path]


def test_a_models_own_arguments_with_which_servers_report_no_kv_cache_are_refused(monkeypatch: pytest.MonkeyPatch):
    known = catalogue.model("gpt-oss-120b")
    assert known is not None
    silent = known.model_copy(update={"arguments": ("--no-enable-prefix-caching",)})
    monkeypatch.setattr(catalogue, "model", lambda _: silent)
    with pytest.raises(InvalidStack, match="nothing to report") as refused:
        planning.plan_object(stack(model("agg-tp1-2r", router={"profile": "precise-prefix"})))
    assert [problem.path for problem in refused.value.problems] == ["models[0].router.profile"]
