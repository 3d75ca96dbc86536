"""Prefixes on the real endpoint picker of llm-d 0.6.0: hits by what simulated servers count.

The picker's tokenizer, which the kit doesn't deploy, is a stand-in that asks one of the servers.
"""

import json
from typing import Any

import pytest
import yaml
from llmd_oke import catalogue
from llmd_oke.serving import labels, picker_config, router
from pod_cluster import HERE, Object, PodCluster, is_ready, program_of
from prefix_load import PREFIXES, PROMPTS_EACH
from test_router_in_cluster import PLURALS, create_definitions, release_of, with_few_processors

pytestmark = pytest.mark.rehearsal

SERVERS_RELEASE, ROUTER_RELEASE = "llm-d-0.9.0", "llm-d-0.6.0"
NAMESPACE, MODEL = "prefixes", "Qwen/Qwen3-8B"
SERVERS, BLOCK, TOKENIZER_PORT = 4, 16, 5600
SERVER = """
metadata: {{name: {name}, namespace: {namespace}, labels: {labels}}}
spec:
  containers:
    - name: vllm
      image: {image}
      command: [vllm, serve, {model}, --port=8000, --block-size={block}, '{events}']
      env: [{{name: POD_IP, valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}}}]
      readinessProbe: {{httpGet: {{path: /health, port: 8000}}, periodSeconds: 1}}
"""
TOKENIZER = """
metadata: {{name: tokenizer, namespace: {namespace}, labels: {{app: tokenizer}}}}
spec:
  containers:
    - name: tokenizer
      image: test/python:1
      command: [python, -B, /opt/tokenizer/tokenizer.py, "{port}", "{url}"]
      readinessProbe: {{tcpSocket: {{port: {port}}}, periodSeconds: 1}}
      volumeMounts: [{{name: program, mountPath: /opt/tokenizer}}]
  volumes: [{{name: program, configMap: {{name: tokenizer}}}}]
"""
TOKENIZER_POLICY = """
metadata: {{name: tokenizer, namespace: {namespace}}}
spec:
  podSelector: {{matchLabels: {router}}}
  policyTypes: [Egress]
  egress: [{{to: [{{podSelector: {{matchLabels: {{app: tokenizer}}}}}}], ports: [{{port: {port}}}]}}]
"""
"""Lets the router reach the tokenizer, as whoever deploys one does."""


def picker(*scorers: dict[str, Any]) -> str:
    """The picker's config: requests waiting at servers, after these scorers."""
    plugins = [*scorers, {"type": "queue-scorer"}]
    used = [{"pluginRef": plugin["type"], "weight": len(plugins) - index} for index, plugin in enumerate(plugins)]
    profiles = [{"name": "default", "plugins": used}]
    return yaml.safe_dump({"plugins": [{"type": "single-profile-handler"}, *plugins], "schedulingProfiles": profiles})


def precise(tokenizer: str, events_port: int) -> dict[str, Any]:
    pool = {"modelName": MODEL, "workersCount": 4, "uds": {"socketFile": tokenizer, "useTCP": True}}
    found = {"topicFilter": "kv@", "concurrency": 4, "discoverPods": True}
    return {
        "type": "precise-prefix-cache-scorer",
        "parameters": {
            "tokenProcessorConfig": {"blockSize": BLOCK, "blockSizeTokens": BLOCK},
            "indexerConfig": {"tokenizersPoolConfig": pool},
            "kvEventsConfig": {**found, "podDiscoveryConfig": {"socketPort": events_port}},
        },
    }


@pytest.fixture(scope="module")
def hits(pod_cluster: PodCluster) -> dict[str, float]:
    """The share of prompt tokens that servers had cached: by what they report, by the profile `prefix`, by neither."""
    release, newer = release_of(ROUTER_RELEASE), catalogue.release(SERVERS_RELEASE)
    if program_of("envoy") is None:
        pytest.skip("no envoy on this machine")
    assert newer is not None
    assert newer.vllm.kv_events is not None
    core = pod_cluster.namespace(NAMESPACE)
    create_definitions(pod_cluster, release)
    (flag,) = newer.vllm.kv_events.given(MODEL, 8000)
    addresses: dict[str, list[str]] = {}
    for unit in ("precise", "prefix", "load"):
        names = [f"{unit}-{index}" for index in range(SERVERS)]
        for name in names:
            selected = json.dumps(labels.role_selector(unit, "aggregated"))
            pod_cluster.create(
                f"{core}/pods",
                SERVER.format(
                    name=name,
                    namespace=NAMESPACE,
                    labels=selected,
                    image=newer.vllm.image.pinned,
                    model=MODEL,
                    block=BLOCK,
                    events=flag,
                ),
            )
        addresses[unit] = [pod_cluster.wait(f"{core}/pods", name, is_ready)["status"]["podIP"] for name in names]
    program = {"metadata": {"name": "tokenizer"}, "data": {"tokenizer.py": (HERE / "tokenizer_service.py").read_text()}}
    assert pod_cluster.api.post(f"{core}/configmaps", json=program).is_success
    url = f"http://{addresses['precise'][0]}:8000"
    pod_cluster.create(f"{core}/pods", TOKENIZER.format(namespace=NAMESPACE, port=TOKENIZER_PORT, url=url))
    policy = TOKENIZER_POLICY.format(
        namespace=NAMESPACE, router=json.dumps(labels.router_selector("precise")), port=TOKENIZER_PORT
    )
    pod_cluster.create(f"/{PLURALS['NetworkPolicy'].format(NAMESPACE)}", policy)
    tokenizer = pod_cluster.wait(f"{core}/pods", "tokenizer", is_ready)["status"]["podIP"]
    scorer = precise(f"{tokenizer}:{TOKENIZER_PORT}", newer.vllm.kv_events.port)
    routers: dict[str, str | None] = {"precise": picker(scorer), "prefix": None, "load": picker()}
    return {unit: _measured(pod_cluster, unit, config, addresses[unit]) for unit, config in routers.items()}


def _measured(cluster: PodCluster, unit: str, config: str | None, servers: list[str]) -> float:
    """Have a router, by the profile `prefix` without a config, send prompts to its servers, and return the share of
    their tokens that these had cached.
    """
    args: picker_config.RouterArgs = {
        "release": SERVERS_RELEASE,
        "override": {"router": ROUTER_RELEASE},
        "namespace": NAMESPACE,
        "model": unit,
        "unit": unit,
        "disaggregated": False,
        "config": config,
        "reported": {"model": MODEL, "block_size": BLOCK},
    }
    for manifest in with_few_processors(router.router_manifests(args)):
        response = cluster.api.post(f"/{PLURALS[manifest['kind']].format(NAMESPACE)}", json=manifest)
        assert response.is_success, response.text
    cluster.wait(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", f"{unit}-epp", _is_ready)
    address = cluster.get(f"/api/v1/namespaces/{NAMESPACE}/services/{unit}-epp")["spec"]["clusterIP"]
    cluster.inside("curl", "-sS", "--retry-connrefused", "--retry", "30", "--retry-delay", "1", f"http://{address}/")
    statuses = json.loads(cluster.inside("python3", str(HERE / "prefix_load.py"), f"{address}:80", MODEL))
    assert statuses == {"200": PREFIXES * PROMPTS_EACH}
    texts = [cluster.inside("curl", "-sS", f"http://{server}:8000/metrics") for server in servers]
    queried, cached = (
        sum(float(line.rpartition(" ")[2]) for text in texts for line in text.splitlines() if line.startswith(name))
        for name in ("vllm:prefix_cache_queries_total{", "vllm:prefix_cache_hits_total{")
    )
    return cached / queried


def _is_ready(deployment: Object) -> bool:
    return deployment.get("status", {}).get("readyReplicas", 0) == 1


@pytest.mark.parametrize("unit", ["precise", "prefix"])
def test_prefix_routing_raises_the_share_of_prompt_tokens_found_in_servers_caches(
    hits: dict[str, float], unit: str
) -> None:
    """All prompts of a prefix but the first can find it cached."""
    print("share of prompt tokens that servers had cached:", hits)
    assert hits[unit] > hits["load"] + 0.15
    assert hits[unit] > 0.9 * (PROMPTS_EACH - 1) / PROMPTS_EACH
