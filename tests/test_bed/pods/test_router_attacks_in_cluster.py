import json
import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.serving import labels, picker_config, router
from pod_cluster import HERE, PodCluster, is_ready, program_of
from test_router_in_cluster import PLURALS, create_definitions, release_of, with_few_processors

sys.path.insert(0, str(Path(__file__).parents[2] / "rehearsal" / "front_door"))
from request_attacks import MODEL, attacks, body_of, post

pytestmark = pytest.mark.rehearsal

SERVER = """
metadata: {{name: {name}, namespace: {namespace}, labels: {labels}}}
spec:
  containers:
    - name: vllm
      image: test/bare-python:1
      command: [python, -B, /opt/backend/backend.py]
      env: [{{name: POD_NAME, value: {name}}}, {{name: PORT, value: "{port}"}}]
      readinessProbe: {{httpGet: {{path: /metrics, port: {port}}}, periodSeconds: 1}}
      volumeMounts: [{{name: program, mountPath: /opt/backend}}]
    {sidecar}
  volumes: [{{name: program, configMap: {{name: backend}}}}]
"""
LONG = "All happy families are alike. " * 100


@pytest.fixture(scope="module", params=["llm-d-0.6.0", "llm-d-0.9.0"])
def seen(request: pytest.FixtureRequest, pod_cluster: PodCluster, tmp_path_factory: Any) -> dict[str, Any]:
    release = release_of(request.param)
    version = release.routing_sidecar.image.tag
    if program_of("envoy") is None or program_of("pd-sidecar", version) is None:
        pytest.skip(f"no envoy or no routing sidecar {version} on this machine")
    namespace = f"attacked-{request.param.replace('.', '-')}"
    core = pod_cluster.namespace(namespace)
    create_definitions(pod_cluster, release)
    program = {"metadata": {"name": "backend"}, "data": {"backend.py": (HERE / "router_backend.py").read_text()}}
    assert pod_cluster.api.post(f"{core}/configmaps", json=program).is_success
    sidecar = release.routing_sidecar
    flags = ["--port=8000", f"{sidecar.server_port_flag}=8200", *sidecar.arguments]
    beside = f"- {{name: routing-proxy, image: '{sidecar.image.pinned}', args: {json.dumps(flags)}}}"
    servers: list[str] = []
    for role, port, container in (("prefill", 8000, ""), ("decode", 8200, beside)):
        selected = json.dumps(labels.role_selector("m", role))
        text = SERVER.format(name=role, namespace=namespace, labels=selected, port=port, sidecar=container)
        pod_cluster.create(f"{core}/pods", text)
        servers.append(f"{pod_cluster.wait(f'{core}/pods', role, is_ready)['status']['podIP']}:{port}")
    args: picker_config.RouterArgs = {
        "release": release.name,
        "namespace": namespace,
        "model": "m",
        "unit": "m",
        "disaggregated": True,
    }
    for manifest in with_few_processors(router.router_manifests(args)):
        response = pod_cluster.api.post(f"/{PLURALS[manifest['kind']].format(namespace)}", json=manifest)
        assert response.is_success, response.text
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    replicas = release.router.replicas
    pod_cluster.wait(deployments, "m-epp", lambda d: d.get("status", {}).get("readyReplicas", 0) == replicas)
    service = pod_cluster.get(f"{core}/services/m-epp")["spec"]["clusterIP"]
    file = tmp_path_factory.mktemp("attacks") / "requests.json"
    rows = {attack.name: attack.request.hex() for attack in attacks()}
    remote = post(json.dumps({"model": MODEL, "prompt": LONG}).encode())
    file.write_text(json.dumps({"harmless": post(body_of()).hex(), "long": remote.hex(), **rows}))
    pod_cluster.inside(
        "curl", "-sS", "--retry-connrefused", "--retry", "30", "--retry-delay", "1", f"http://{service}/"
    )
    text = pod_cluster.inside("python3", str(HERE / "router_attacks.py"), str(file), f"{service}:80", *servers)
    return json.loads(text)


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
