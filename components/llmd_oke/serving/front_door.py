"""The one address of a model whose units have routers: Envoys that spread requests over the units by load.

A Service spreads connections, so that a client that keeps one open would use one unit. What the Envoys do is in
`front_door_config`.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke.objects import PART_OF, Manifest, when_declared
from llmd_oke.planning.routers import FRONT_DOOR_REPLICAS, FRONT_DOOR_REQUESTS
from llmd_oke.serving import labels
from llmd_oke.serving.front_door_config import DRAIN_LIMIT_S, DRAIN_PORT, READY_PORT, REQUEST_PORT, bootstrap
from llmd_oke.serving.lookup import OverrideArgs, release
from llmd_oke.serving.manifests import declare
from llmd_oke.serving.timeouts import ROUTER_S, timeouts

_CONFIG_FOLDER = "/etc/envoy"
_CONFIG_FILE = "envoy.yaml"

_NOBODY = 65532
"""`nonroot` of the distroless images, which Envoy's is one of."""

_GRACE_S = DRAIN_LIMIT_S + 15


class FrontDoorArgs(TypedDict):
    """What a model's front door needs."""

    namespace: pulumi.Input[str]
    """Namespace of the model."""
    release: str
    """llm-d release of the catalogue, whose Envoy this is."""
    override: NotRequired[OverrideArgs]
    """Parts of the release that others take the place of; none if left out."""
    model: str
    """Name that the model's objects carry as label, and name of the Service."""
    routers: Sequence[str]
    """Services of the units' routers, in the same namespace; port 80 takes requests."""


class FrontDoor(pulumi.ComponentResource):
    """Two Envoys, and the Service that leads to them.

    Declare it after the units, which keeps them until the Envoys that lead to them are gone. Other units bring other
    Envoys beside the old, then the Service leads to these, then the old ones end when they have answered all that they
    took.
    """

    url: pulumi.Output[str]
    """Base URL inside the cluster, without `/v1`."""

    def __init__(self, name: str, args: FrontDoorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:FrontDoor", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(ROUTER_S))
        units = pulumi.ResourceOptions(depends_on=opts.depends_on if opts else None)
        merge = pulumi.ResourceOptions.merge
        config = config_map(args)
        key = f"{name}-{config['metadata']['name'].rsplit('-', 1)[1]}"
        declare(name, disruption_budget(args), child)
        declare(name, network_policy(args), child)
        read = declare(key, config, child)
        pods = declare(key, deployment(args), merge(merge(child, units), _after(read)))
        declared = declare(name, service(args), merge(child, _after(pods)))
        namespace = pulumi.Output.from_input(args["namespace"])
        host = when_declared(declared, args["model"])
        self.url = pulumi.Output.concat("http://", host, ".", namespace, ".svc.cluster.local")
        self.register_outputs({"url": self.url})


def _after(resource: pulumi.Resource) -> pulumi.ResourceOptions:
    return pulumi.ResourceOptions(depends_on=[resource])


def version(args: FrontDoorArgs) -> str:
    """A short name of where requests go and how; Envoy reads it only when it starts."""
    return hashlib.sha256(_bootstrap(args, "namespace").encode()).hexdigest()[:8]


def config_map(args: FrontDoorArgs) -> Manifest:
    """Envoy's bootstrap."""
    text = pulumi.Output.from_input(args["namespace"]).apply(lambda namespace: _bootstrap(args, namespace))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(args, _versioned_name(args)),
        "data": {_CONFIG_FILE: text},
    }


def _bootstrap(args: FrontDoorArgs, namespace: str) -> str:
    hosts = [f"{router}.{namespace}.svc.cluster.local" for router in args["routers"]]
    return bootstrap(hosts, 80)


def deployment(args: FrontDoorArgs) -> Manifest:
    """The Envoys, on different nodes where there are several."""
    chosen = labels.front_door_selector(args["model"], version(args))
    spread = [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": chosen},
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "topologySpreadConstraints": spread,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(args)],
        "volumes": [{"name": "config", "configMap": {"name": _versioned_name(args)}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(args, _versioned_name(args)),
        "spec": {
            "replicas": FRONT_DOOR_REPLICAS,
            "selector": {"matchLabels": chosen},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": {**PART_OF, **chosen}}, "spec": pod},
        },
    }


def _container(args: FrontDoorArgs) -> dict[str, Any]:
    """Envoy. Its readiness ends with `/drain`; whether it lives is asked by connecting to it."""
    requests = FRONT_DOOR_REQUESTS
    return {
        "name": "envoy",
        "image": release(args["release"], args.get("override")).proxy.image.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": ["envoy"],
        "args": [
            *("--config-path", f"{_CONFIG_FOLDER}/{_CONFIG_FILE}"),
            *("--log-level", "warn"),
            *("--concurrency", str(requests.cpus * 2)),
            "--disable-hot-restart",
        ],
        "ports": [
            {"name": "http", "containerPort": REQUEST_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": READY_PORT, "protocol": "TCP"},
        ],
        "resources": {
            "requests": {"cpu": str(requests.cpus), "memory": f"{requests.memory_gib}Gi"},
            "limits": {"memory": f"{requests.memory_gib * 2}Gi"},
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "metrics"}, "periodSeconds": 2, "failureThreshold": 2},
        "livenessProbe": {"tcpSocket": {"port": "metrics"}, "periodSeconds": 10, "failureThreshold": 3},
        "lifecycle": {"preStop": {"httpGet": {"path": "/drain", "port": DRAIN_PORT}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": _CONFIG_FOLDER, "readOnly": True}],
    }


def service(args: FrontDoorArgs) -> Manifest:
    """The model's address. It is declared when the Envoys are ready, so that nothing is left to wait for."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**_metadata(args, args["model"]), "annotations": {"pulumi.com/skipAwait": "true"}},
        "spec": {
            "type": "ClusterIP",
            "selector": labels.front_door_selector(args["model"], version(args)),
            "ports": [{"name": "http", "port": 80, "targetPort": REQUEST_PORT, "protocol": "TCP"}],
        },
    }


def disruption_budget(args: FrontDoorArgs) -> Manifest:
    """Draining nodes takes one Envoy away at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(args, _name(args)),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels.front_door_selector(args["model"])}},
    }


def network_policy(args: FrontDoorArgs) -> Manifest:
    """Nobody but the pod's own node, which policies never shut out, may ask it to drain."""
    ports = [{"protocol": "TCP", "port": port} for port in (REQUEST_PORT, READY_PORT)]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(args, _name(args)),
        "spec": {
            "podSelector": {"matchLabels": labels.front_door_selector(args["model"])},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": ports}],
        },
    }


def _metadata(args: FrontDoorArgs, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": args["namespace"], "labels": {**PART_OF, labels.MODEL: args["model"]}}


def _name(args: FrontDoorArgs) -> str:
    return f"{args['model']}-front-door"


def _versioned_name(args: FrontDoorArgs) -> str:
    return f"{_name(args)}-{version(args)}"
