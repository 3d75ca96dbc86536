"""Prefixes on real endpoint pickers: hits by what simulated servers count.

The tokenizer of llm-d 0.6.0's picker, which the kit doesn't deploy, is a stand-in that asks one of the servers.
"""

import json
from typing import Any, NamedTuple

import pytest
import yaml
from llmd_oke import catalogue
from llmd_oke.serving import labels
from llmd_oke.serving.picker_config import RouterArgs
from pod_cluster import HERE, PodCluster, is_ready
from prefix_load import PREFIXES, PROMPTS_EACH
from routers_for_tests import PLURALS, ROUTER_RELEASES, mount_program
from simulated_unit import BLOCK, MODEL, SERVERS_RELEASE, Namespace

pytestmark = pytest.mark.rehearsal

TOKENIZER_PORT = 5600
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


class Hits(NamedTuple):
    """Share of prompt tokens that servers had cached: of prompts whose prefixes all came through the router, and of
    those whose prefixes servers had from others.
    """

    routed: float
    others: float


@pytest.fixture(scope="module", params=ROUTER_RELEASES)
def hits(request: pytest.FixtureRequest, pod_cluster: PodCluster) -> dict[str, Hits]:
    """Hits by unit: by what servers report (`precise`), by what the picker has sent them (`prefix`, `affinity`), and by
    neither (`load`).
    """
    with pod_cluster.ending_namespaces():
        return _hits(Namespace.made(pod_cluster, "prefixes", request.param))


def _hits(namespace: Namespace) -> dict[str, Hits]:
    newer = catalogue.release(SERVERS_RELEASE)
    assert newer is not None
    assert newer.vllm.kv_events is not None
    (flag,) = newer.vllm.kv_events.given(MODEL, 8000)
    first = namespace.serve("precise", flag)
    if namespace.router_release == SERVERS_RELEASE:
        precisely: RouterArgs = {"profile": "precise-prefix"}
        routers: dict[str, RouterArgs] = {"affinity": {"profile": "prefix-affinity"}, "load": {"profile": "token-load"}}
    else:
        scorer = precise(_tokenizer(namespace, first[0]), newer.vllm.kv_events.port)
        precisely, routers = {"config": picker(scorer)}, {"load": {"config": picker()}}
    found = {"precise": _measured(namespace, "precise", precisely, first)}
    for unit, args in {"prefix": RouterArgs(profile="prefix"), **routers}.items():
        found[unit] = _measured(namespace, unit, args, namespace.serve(unit, flag))
    print("share of prompt tokens that servers had cached:", namespace.router_release, found)
    return found


def _tokenizer(namespace: Namespace, server: str) -> str:
    """Return the address of a tokenizer that asks a server, which the router of the unit `precise` may reach."""
    cluster, core = namespace.cluster, namespace.core
    mount_program(cluster, namespace.name, "tokenizer", "tokenizer_service.py")
    url = f"http://{server}:8000"
    cluster.create(f"{core}/pods", TOKENIZER.format(namespace=namespace.name, port=TOKENIZER_PORT, url=url))
    policy = TOKENIZER_POLICY.format(
        namespace=namespace.name, router=json.dumps(labels.router_selector("precise")), port=TOKENIZER_PORT
    )
    cluster.create(f"/{PLURALS['NetworkPolicy'].format(namespace.name)}", policy)
    address = cluster.wait(f"{core}/pods", "tokenizer", is_ready)["status"]["podIP"]
    return f"{address}:{TOKENIZER_PORT}"


def _measured(namespace: Namespace, unit: str, args: RouterArgs, servers: list[str]) -> Hits:
    """Have a router send prompts to its servers, and return the share of their tokens that these had cached."""
    address = namespace.route(unit, {"reported": {"model": MODEL, "block_size": BLOCK}, **args})

    def counted() -> list[float]:
        return [sum(namespace.counted(servers, f"vllm:prefix_cache_{name}_total")) for name in ("queries", "hits")]

    def send(*first: str) -> dict[str, int]:
        asked = ("python3", str(HERE / "prefix_load.py"), address, MODEL, *first)
        return json.loads(namespace.cluster.inside(*asked))

    assert send() == {"200": PREFIXES * PROMPTS_EACH}
    queried, cached = counted()
    assert send(*servers) == {"200": 2 * PREFIXES}
    later_queried, later_cached = counted()
    namespace.remove(unit)
    of_routed = (later_queried - queried) / 2  # the other half were those sent past the router
    return Hits(cached / queried, (later_cached - cached) / of_routed)


def test_prefix_routing_raises_the_share_of_prompt_tokens_found_in_servers_caches(hits: dict[str, Hits]) -> None:
    """All prompts of a prefix but the first can find it cached."""
    for unit in hits.keys() - {"load"}:
        assert hits[unit].routed > hits["load"].routed + 0.15, unit
        assert hits[unit].routed > 0.9 * (PROMPTS_EACH - 1) / PROMPTS_EACH, unit


def test_only_by_what_servers_report_are_prefixes_found_that_others_sent_them(hits: dict[str, Hits]) -> None:
    """A quarter of them is found by chance."""
    assert hits["precise"].others > 0.9
    assert all(hits[unit].others < 0.9 for unit in hits.keys() - {"precise"})
