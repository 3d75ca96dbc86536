import json
import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.serving import labels
from pod_cluster import HERE, PodCluster, program_of
from routers_for_tests import LONG, ROUTER_RELEASES, backends, route, router_namespace

sys.path.insert(0, str(Path(__file__).parents[2] / "rehearsal" / "front_door"))
from request_attacks import MODEL, attacks, body_of, post

pytestmark = pytest.mark.rehearsal


@pytest.fixture(scope="module", params=ROUTER_RELEASES)
def seen(request: pytest.FixtureRequest, pod_cluster: PodCluster, tmp_path_factory: Any) -> dict[str, Any]:
    with pod_cluster.ending_namespaces():
        return _seen(pod_cluster, request.param, tmp_path_factory.mktemp("attacks") / "requests.json")


def _seen(cluster: PodCluster, release_name: str, file: Path) -> dict[str, Any]:
    namespace = f"attacked-{release_name.replace('.', '-')}"
    release = router_namespace(cluster, namespace, release_name)
    sidecar = release.routing_sidecar
    if program_of("pd-sidecar", sidecar.image.tag) is None:
        pytest.skip(f"no routing sidecar {sidecar.image.tag} on this machine")
    flags = ["--port=8000", f"{sidecar.server_port_flag}=8200", *sidecar.arguments]
    beside = f"- {{name: routing-proxy, image: '{sidecar.image.pinned}', args: {json.dumps(flags)}}}"
    given = {"prefill": {"port": 8000}, "decode": {"port": 8200, "sidecar": beside}}
    servers = {role: {"labels": labels.role_selector("m", role), **own} for role, own in given.items()}
    addresses = [f"{ip}:{given[role]['port']}" for role, ip in backends(cluster, namespace, servers).items()]
    router = route(cluster, namespace, release.name, disaggregated=True)
    rows = {attack.name: attack.request.hex() for attack in attacks()}
    remote = post(json.dumps({"model": MODEL, "prompt": LONG}).encode())
    file.write_text(json.dumps({"harmless": post(body_of()).hex(), "long": remote.hex(), **rows}))
    return json.loads(cluster.inside("python3", str(HERE / "router_attacks.py"), str(file), router, *addresses))


def test_the_router_passes_valid_requests_and_has_a_long_prompt_prefilled_remotely(seen: dict[str, Any]) -> None:
    assert (seen["harmless"]["status"], seen["harmless"]["reached"]) == (200, 1)
    assert (seen["long"]["status"], seen["long"]["reached"]) == (200, 2)


def test_nothing_that_an_attacker_injects_into_a_request_reaches_a_model_server(seen: dict[str, Any]) -> None:
    assert {name: row["marked"] for name, row in seen.items() if row["marked"]} == {}


def test_a_malicious_request_that_the_router_refuses_reaches_no_model_server(seen: dict[str, Any]) -> None:
    refused = {row.name for row in attacks() if 200 not in row.statuses}
    assert {name: seen[name] for name in refused if seen[name]["reached"] or seen[name]["status"] == 200} == {}
    named = {row.name: row.param for row in attacks() if row.param}
    assert {name: seen[name]["param"] for name in named} == named
