"""Servers that come and go with the load: one KEDA ScaledObject for each Deployment of a unit."""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue.scaling import Pace, scaling
from llmd_oke.objects import PART_OF, Manifest, when_declared
from llmd_oke.serving.manifests import declare
from llmd_oke.serving.timeouts import NAMESPACE_S, timeouts


class ScaledServersArgs(TypedDict):
    """Limits of one role, and what of each server on average has another one started."""

    min_replicas: int
    """Servers that stay, whatever the load."""
    max_replicas: int
    """Servers at the highest load."""
    requests: NotRequired[float]
    """Requests, running and waiting."""
    prompt_tokens_per_s: NotRequired[float]
    """Prompt tokens in a second."""
    kv_cache_usage: NotRequired[float]
    """Share of the KV cache that is in use."""


class ModelScalingArgs(TypedDict):
    """What scaling a unit needs."""

    namespace: pulumi.Input[str]
    """Namespace of the unit."""
    unit: str
    """Name of the unit, with which the names of its Deployments begin."""
    servers: dict[str, ScaledServersArgs]
    """What is scaled, by role: `prefill`, `decode` or `aggregated`."""
    prometheus: NotRequired[str]
    """Address of the Prometheus that has vLLM's metrics; the one of the llm-d guides if left out."""
    scale_up_window_s: NotRequired[int]
    """Seconds that more load must last; 0 if left out."""
    scale_down_window_s: NotRequired[int]
    """Seconds that less load must last; 300 if left out."""


class ModelScaling(pulumi.ComponentResource):
    """The ScaledObjects of a unit. KEDA must be there, and the Deployments must be `autoscaled`.

    Where Prometheus knows nothing of the servers their number stays as it is.
    """

    scaled_objects: pulumi.Output[list[str]]
    """Names of the ScaledObjects, which are those of the Deployments."""

    def __init__(self, name: str, args: ModelScalingArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:ModelScaling", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(NAMESPACE_S))
        manifests = [scaled_object(role, args) for role in args["servers"]]
        declared = [
            when_declared(declare(f"{name}-{role}", manifest, child), manifest["metadata"]["name"])
            for role, manifest in zip(args["servers"], manifests, strict=True)
        ]
        self.scaled_objects = pulumi.Output.all(*declared)
        self.register_outputs({"scaled_objects": self.scaled_objects})


def scaled_object(role: str, args: ModelScalingArgs) -> Manifest:
    """The ScaledObject of one role, with a trigger for each threshold: the one that asks for most servers decides."""
    facts, servers = scaling(), args["servers"][role]
    deployment = f"{args['unit']}-{role}"
    behavior = {
        "scaleUp": _behavior(facts.scale_up, args.get("scale_up_window_s")),
        "scaleDown": _behavior(facts.scale_down, args.get("scale_down_window_s")),
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": deployment, "namespace": args["namespace"], "labels": PART_OF},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment},
            "minReplicaCount": servers["min_replicas"],
            "maxReplicaCount": servers["max_replicas"],
            "pollingInterval": facts.polling_interval_s,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
            "triggers": _triggers(deployment, args, servers),
        },
    }


def _triggers(deployment: str, args: ModelScalingArgs, servers: Mapping[str, Any]) -> list[dict[str, Any]]:
    facts = scaling()
    return [
        {
            "type": "prometheus",
            "name": name.replace("_", "-"),
            "metricType": "AverageValue",
            "metadata": {
                "serverAddress": args.get("prometheus", facts.prometheus),
                "query": _query(query, deployment, args["namespace"]),
                "threshold": f"{servers[name]:.12g}",
                "ignoreNullValues": "false",
            },
        }
        for name, query in facts.queries.items()
        if servers.get(name) is not None
    ]


def _query(query: str, deployment: str, namespace: pulumi.Input[str]) -> pulumi.Output[str]:
    """The query with the pods of the Deployment, whose names end in those of their ReplicaSet and of their own."""
    pods = f"{deployment}-[a-z0-9]+-[a-z0-9]+"

    def selected(name: str) -> str:
        return query.replace("<selector>", f'{{namespace="{name}",pod=~"{pods}"}}')

    return pulumi.Output.from_input(namespace).apply(selected)


def _behavior(pace: Pace, window_s: int | None) -> dict[str, Any]:
    return {
        "stabilizationWindowSeconds": pace.window_s if window_s is None else window_s,
        "policies": [{"type": "Pods", "value": pace.pods, "periodSeconds": pace.period_s}],
    }
