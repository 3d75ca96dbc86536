"""Objects that llm-d's guide deploys for one model (servers, router by its standalone chart), and their creation.

Run inside a rehearsal's cluster: guide_objects.py FILE creates the objects in a JSON file and waits until they serve.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gitops_sync import is_ready, register
from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from llmd_oke.values import read_yaml_documents

LIMIT_S = 300
NAMESPACE = "llm-d"
OWN = {"llm-d.ai/guide": "pd-disaggregation"}
ADDRESS = f"http://gpt-oss-120b-epp.{NAMESPACE}.svc.cluster.local:8081"
"""The router's address, where the guide's clients ask."""

PLUGINS = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disagg-headers-handler
- type: queue-scorer
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: always-disagg-pd-decider
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: max-score-picker}, {pluginRef: queue-scorer}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}, {pluginRef: queue-scorer}]}
"""


def servers(deployment: Mapping[str, Any], image: str, sidecar: str) -> dict[str, Any]:
    """A guide's Deployment, whole: image, port, environment, probe, and before decode servers the routing sidecar."""
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    (written,) = deployment["spec"]["template"]["spec"]["containers"]
    decodes = labels["llm-d.ai/role"] == "decode"
    port = 8200 if decodes else 8000
    connector = '--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_both"}'
    host = {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    server = {
        **written,
        "image": image,
        "args": [*written["args"], connector, f"--port={port}"],
        "env": [host, {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": "5600"}],
        "ports": [{"containerPort": port}, {"containerPort": 5600}],
        "readinessProbe": {"httpGet": {"path": "/v1/models", "port": port}, "periodSeconds": 5},
    }
    proxy = {
        "name": "routing-proxy",
        "image": sidecar,
        "args": ["--port=8000", "--vllm-port=8200", "--kv-connector=nixlv2", "--secure-proxy=false"],
        "ports": [{"containerPort": 8000}],
        "restartPolicy": "Always",
    }
    pod = {
        "containers": [server],
        "tolerations": [{"key": "amd.com/gpu", "operator": "Exists"}],
        **({"initContainers": [proxy]} if decodes else {}),
    }
    spec = {
        **deployment["spec"],
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return {"apiVersion": "apps/v1", **deployment, "spec": spec}


def router(chart: Path) -> list[dict[str, Any]]:
    """The objects of a rendered chart, with the guide's plug-ins and its pods in the InferencePool."""
    objects: list[dict[str, Any]] = read_yaml_documents(chart)
    for item in objects:
        if item["kind"] == "ConfigMap" and "pd-config.yaml" in item["data"]:
            item["data"]["pd-config.yaml"] = PLUGINS
        if item["kind"] == "InferencePool":
            item["spec"]["selector"]["matchLabels"] = OWN
        if item["kind"] == "Deployment":
            for container in item["spec"]["template"]["spec"]["containers"]:
                container["args"] = ["warn" if word == "trace" else word for word in container["args"]]
    return objects


def create(client: Client, objects: Sequence[dict[str, Any]]) -> None:
    definitions = [item for item in objects if item["kind"] == CustomResourceDefinition.__name__]
    for item in definitions:
        client.apply(cast("Any", from_dict(item)), field_manager="helm", force=True)
        client.wait(CustomResourceDefinition, item["metadata"]["name"], for_conditions=["Established"])
    register(client)
    others = [item for item in objects if item not in definitions]
    for item in others:
        client.apply(cast("Any", from_dict(item)), field_manager="helm", force=True)
    end_s = time.monotonic() + LIMIT_S
    while waits := [item["metadata"]["name"] for item in others if not is_ready(client, item)]:
        if time.monotonic() > end_s:
            raise SystemExit(f"not ready after {LIMIT_S} s: {', '.join(waits)}")
        time.sleep(0.5)


if __name__ == "__main__":
    create(Client(KubeConfig.from_env(), trust_env=False), json.loads(Path(sys.argv[1]).read_text()))
