"""The address of one model: Envoys before the routers of its units, or a plain Service if there are no routers.

A Service balances connections, so that a client with one connection would use one unit; the Envoys balance requests
over the units by load.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue.server_settings import SERVER_PORT
from llmd_oke.kubernetes_types import Container, ObjectMeta, PodSpec, TopologySpreadConstraint, Volume
from llmd_oke.objects import (
    NON_ROOT_USER_ID,
    PART_OF,
    RESTRICTED_CONTAINER,
    Manifest,
    OverrideArgs,
    ReleaseRef,
    after,
    inputs,
    pod_security,
    register_outputs,
    resolve_release,
    when_declared,
)
from llmd_oke.planning.placement import FRONT_DOOR_REPLICAS, FRONT_DOOR_REQUESTS, FRONT_DOOR_THREADS
from llmd_oke.serving import labels, model_envoy, network_policies
from llmd_oke.serving.envoy_bounds import bounds
from llmd_oke.serving.manifests import ROUTER_S, declare, object_metadata, timeouts
from llmd_oke.serving.model_envoy import DRAIN_LIMIT_S, DRAIN_PORT, READY_PORT, REQUEST_PORT

DEFAULT_READY_TIMEOUT_S = 600

CONFIG_FOLDER = "/etc/envoy"
CONFIG_FILE = "envoy.yaml"

_GRACE_S = DRAIN_LIMIT_S + 15
_STUCK_GRACE_S = 10
"""Grace period in seconds after a failed liveness probe: an Envoy that accepts no connections has no requests to drain.
"""


class FrontDoorArgs(TypedDict):
    """Arguments of a model's front door."""

    namespace: pulumi.Input[str]
    """Namespace of the model."""
    release: ReleaseRef
    """llm-d release of the catalogue, which names Envoy's image."""
    override: NotRequired[OverrideArgs | None]
    """Replacements for parts of the release; none if left out."""
    model: str
    """Name of the Service, and value of the label `llmd-oke/model` on all objects."""
    routers: Sequence[str]
    """Names of the units' router Services, in the same namespace, which accept requests on port 80."""
    holds_back: NotRequired[bool | None]
    """Whether the routers queue requests while servers are saturated. Requests that they refuse are then not retried;
    false if left out."""
    session_headers: NotRequired[list[str] | None]
    """Headers by which the routers keep a client's session at one server; none if left out."""


class FrontDoorPortArgs(TypedDict):
    """Port on which the front door of a stack accepts requests for one model from inside the cluster."""

    version: pulumi.Input[str]
    """Value of the label `llmd-oke/front-door` on the front door's Envoys."""
    port: int
    """Container port of the Envoys."""


class ModelEndpointArgs(TypedDict):
    """Arguments of a model's endpoint."""

    namespace: pulumi.Input[str]
    """Namespace of the model."""
    model: str
    """Name of the Service, and value of the label `llmd-oke/model` on all objects."""
    ready_timeout_s: NotRequired[int | None]
    """Limit in seconds of the wait until the Service has ready pods; 600 if left out."""
    front_door: NotRequired[FrontDoorPortArgs | None]
    """Port of the stack's front door that the Service leads to; the Service leads to the model's servers if left out.
    """


class FrontDoor(pulumi.ComponentResource):
    """Two Envoys that balance requests over a model's units, and their Service.

    Declare it after the units, so that units are deleted only after the Envoys that use them. When the units change,
    new Envoys are created first, then the Service selects them, then the old Envoys drain and end.
    """

    url: pulumi.Output[str]
    """Base URL inside the cluster, without `/v1`."""

    def __init__(self, name: str, args: FrontDoorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:FrontDoor", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(ROUTER_S))
        units = pulumi.ResourceOptions(depends_on=opts.depends_on if opts else None)
        config = config_map(args)
        key = f"{name}-{config['metadata']['name'].rsplit('-', 1)[1]}"
        declare(name, disruption_budget(args), child)
        declare(name, network_policy(args), child)
        read = declare(key, config, child)
        pods = declare(key, deployment(args), after(pulumi.ResourceOptions.merge(child, units), read))
        declared = declare(name, _service(args), after(child, pods))
        namespace = pulumi.Output.from_input(args["namespace"])
        host = when_declared(declared, args["model"])
        self.url = pulumi.Output.concat("http://", host, ".", namespace, ".svc.cluster.local")
        register_outputs(self)


class ModelEndpoint(pulumi.ComponentResource):
    """A Service that balances connections over the servers of all units of a model, as the published baseline does, or
    that leads to the front door of the stack.

    Declare it independently of the units: Pulumi's Kubernetes provider waits ten seconds for every Service to settle.
    """

    url: pulumi.Output[str]
    """Base URL inside the cluster, without `/v1`."""

    def __init__(self, name: str, args: ModelEndpointArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:ModelEndpoint", name, inputs(self, args), opts)
        limits = timeouts(args.get("ready_timeout_s") or DEFAULT_READY_TIMEOUT_S)
        declared = declare(name, endpoint_service(args), pulumi.ResourceOptions(parent=self, custom_timeouts=limits))
        namespace = pulumi.Output.all(args["namespace"], declared.urn).apply(lambda values: values[0])
        self.url = pulumi.Output.concat("http://", args["model"], ".", namespace, ".svc.cluster.local")
        register_outputs(self)


def endpoint_service(args: ModelEndpointArgs) -> Manifest:
    """Return the Service of a `ModelEndpoint`."""
    model, door = args["model"], args.get("front_door")
    selector: Mapping[str, pulumi.Input[str]] = labels.model_selector(model)
    if door is not None:
        selector = {**labels.stack_front_door_selector(), labels.FRONT_DOOR: door["version"]}
    port = SERVER_PORT if door is None else door["port"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": model,
            "namespace": args["namespace"],
            "labels": {**PART_OF, labels.MODEL: model},
        },
        "spec": {
            "type": "ClusterIP",
            "selector": selector,
            "ports": [{"name": "http", "port": 80, "targetPort": port, "protocol": "TCP"}],
        },
    }


def version(args: FrontDoorArgs) -> str:
    """Return a digest of Envoy's bootstrap, which Envoy reads only at its start."""
    return hashlib.sha256(_text(args, "namespace").encode()).hexdigest()[:8]


def config_map(args: FrontDoorArgs) -> Manifest:
    """Return the ConfigMap with Envoy's bootstrap."""
    text = pulumi.Output.from_input(args["namespace"]).apply(lambda namespace: _text(args, namespace))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(args, _versioned_name(args)),
        "data": {CONFIG_FILE: text},
    }


def _text(args: FrontDoorArgs, namespace: str) -> str:
    sessions = tuple(args.get("session_headers") or ())
    return _bootstrap(tuple(args["routers"]), namespace, bool(args.get("holds_back")), sessions)


@cache
def _bootstrap(routers: tuple[str, ...], namespace: str, refusals_last: bool, sessions: tuple[str, ...]) -> str:
    hosts = [f"{router}.{namespace}.svc.cluster.local" for router in routers]
    return model_envoy.bootstrap(hosts, 80, refusals_last=refusals_last, sessions=sessions)


def deployment(args: FrontDoorArgs) -> Manifest:
    """Return the Deployment of a model's Envoys."""
    name = _versioned_name(args)
    return envoys(
        _metadata(args, name),
        labels.of_front_door_version(labels.front_door_selector(args["model"]), version(args)),
        resolve_release(args["release"], args.get("override")).proxy.image.pinned,
        {"http": REQUEST_PORT},
        {"config": (CONFIG_FOLDER, {"configMap": {"name": name}})},
    )


def envoys(
    metadata: ObjectMeta,
    chosen: dict[str, str],
    image: str,
    ports: Mapping[str, int],
    volumes: Mapping[str, tuple[str, Volume]],
) -> Manifest:
    """Return the Deployment of a front door's Envoys, which are spread over nodes and zones.

    Args:
        metadata: metadata of the Deployment.
        chosen: labels that select the Deployment's pods.
        image: image of Envoy.
        ports: container ports for requests, by name.
        volumes: mount path and source of each volume, by the volume's name; the volume `config` contains the bootstrap.
    """
    spread: list[TopologySpreadConstraint] = [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": chosen},
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]
    pod: PodSpec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "topologySpreadConstraints": spread,
        "securityContext": {**pod_security(NON_ROOT_USER_ID), "runAsGroup": NON_ROOT_USER_ID},
        "containers": [_container(image, ports, {name: folder for name, (folder, _) in volumes.items()})],
        "volumes": [{**source, "name": name} for name, (_, source) in volumes.items()],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": FRONT_DOOR_REPLICAS,
            "selector": {"matchLabels": chosen},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": {**PART_OF, **chosen}}, "spec": pod},
        },
    }


def _container(image: str, ports: Mapping[str, int], folders: Mapping[str, str]) -> Container:
    """Return the container of Envoy. It is unready from the call of `/drain` on; its liveness probe is a TCP
    connection.
    """
    requests = FRONT_DOOR_REQUESTS
    return {
        "name": "envoy",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["envoy"],
        "args": [
            *("--config-path", f"{CONFIG_FOLDER}/{CONFIG_FILE}"),
            *("--log-level", "warn"),
            *("--concurrency", str(FRONT_DOOR_THREADS)),
            "--disable-hot-restart",
        ],
        "ports": [
            *({"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()),
            {"name": "metrics", "containerPort": READY_PORT, "protocol": "TCP"},
        ],
        "resources": {
            "requests": {"cpu": str(requests.cpus), "memory": f"{requests.memory_gib}Gi"},
            "limits": {"memory": f"{bounds().memory_limit_mib}Mi"},
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "metrics"}, "periodSeconds": 2, "failureThreshold": 2},
        "startupProbe": {"tcpSocket": {"port": "metrics"}, "periodSeconds": 1, "failureThreshold": 60},
        "livenessProbe": {
            "tcpSocket": {"port": "metrics"},
            "periodSeconds": 10,
            "failureThreshold": 3,
            "terminationGracePeriodSeconds": _STUCK_GRACE_S,
        },
        "lifecycle": {"preStop": {"httpGet": {"path": "/drain", "port": DRAIN_PORT}}},
        "securityContext": RESTRICTED_CONTAINER,
        "volumeMounts": [{"name": name, "mountPath": folder, "readOnly": True} for name, folder in folders.items()],
    }


def _service(args: FrontDoorArgs) -> Manifest:
    """Return the Service of the model. Pulumi doesn't wait for its endpoints, since it is declared after the Envoys are
    ready.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**_metadata(args, args["model"]), "annotations": {"pulumi.com/skipAwait": "true"}},
        "spec": {
            "type": "ClusterIP",
            "selector": labels.of_front_door_version(labels.front_door_selector(args["model"]), version(args)),
            "ports": [{"name": "http", "port": 80, "targetPort": REQUEST_PORT, "protocol": "TCP"}],
        },
    }


def disruption_budget(args: FrontDoorArgs) -> Manifest:
    """Return the PodDisruptionBudget by which draining nodes evicts one Envoy at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(args, _name(args)),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels.front_door_selector(args["model"])}},
    }


def network_policy(args: FrontDoorArgs) -> Manifest:
    """Return the network policy of the Envoys: any pod may send requests, and measuring pods and monitoring may read
    metrics. Only the pod's own node, whose connections network policies never block, can reach `/drain`.
    """
    return network_policies.policy(
        _metadata(args, _name(args)),
        labels.front_door_selector(args["model"]),
        [
            {"ports": network_policies.tcp_ports(REQUEST_PORT)},
            {"ports": network_policies.tcp_ports(READY_PORT), **network_policies.readers([])},
        ],
        network_policies.front_door_destinations(),
    )


def _metadata(args: FrontDoorArgs, name: str) -> ObjectMeta:
    return object_metadata(name, args["namespace"], {labels.MODEL: args["model"]})


def _name(args: FrontDoorArgs) -> str:
    return f"{args['model']}-front-door"


def _versioned_name(args: FrontDoorArgs) -> str:
    return f"{_name(args)}-{version(args)}"
