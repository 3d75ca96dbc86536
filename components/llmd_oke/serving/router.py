"""Router of a unit (the servers of one topology): endpoint picker, Envoy beside it or a Gateway before it, and the
InferencePool.

The manifests are this project's own. A test compares them with what the upstream chart of each release renders;
deviations are listed with their reasons in `values/router/deviations.yaml`.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pulumi

from llmd_oke.catalogue.endpoint_pickers import EXPERIMENTAL
from llmd_oke.catalogue.releases import EndpointPicker, Release, RouterProxy
from llmd_oke.catalogue.server_settings import SERVER_PORT
from llmd_oke.kubernetes_types import (
    Container,
    DeploymentStrategy,
    ObjectMeta,
    PodSpec,
    PolicyRule,
    Probe,
    ResourceRequirements,
    ServicePort,
    ServiceSpec,
    TopologySpreadConstraint,
    Volume,
)
from llmd_oke.objects import (
    NON_ROOT_USER_ID,
    RESTRICTED_CONTAINER,
    Manifest,
    field_value,
    inputs,
    mapped,
    pod_security,
    register_outputs,
    resolve_release,
    when_declared,
)
from llmd_oke.serving import envoy, labels, network_policies
from llmd_oke.serving.client_access import CLIENT_HEADER, PRIORITY_HEADER
from llmd_oke.serving.client_requests import ClientObjectives
from llmd_oke.serving.manifests import (
    ROUTER_S,
    api_access_mount,
    api_access_volume,
    declare,
    from_field,
    object_metadata,
    plain_variables,
    role,
    role_binding,
    text_digest,
    timeouts,
    tracing_environment,
)
from llmd_oke.serving.picker_config import (
    RouterArgs,
    endpoint_picker_config,
    holds_back,
    is_experimental,
    render_name,
    reports_port,
    session_headers,
)

METRICS_PORT = 9090
"""Port of the metrics of a router's endpoint picker."""

CONFIG_ANNOTATION = "llmd-oke/config"

POOL_GROUP = "inference.networking.k8s.io"

_GRACE_S = 130
"""Grace period of the charts in seconds: the longest grace period of an InferencePool's pods."""

_DRAIN_S = 120
"""Seconds for requests under way in an Envoy to finish, once the pod gets no new requests."""

_ANSWERS: Probe = {"tcpSocket": {"port": envoy.PICKER_PORT}, "periodSeconds": 2, "failureThreshold": 150}
"""Startup probe of a picker behind a Gateway. A picker reports ready before it accepts calls, since it then still
creates its certificate, which takes seconds. An Envoy beside it retries; a Gateway answers 500 (observed with v0.7.1).
"""

_READ = ["get", "watch", "list"]

_NOT_WAITED_FOR = {"pulumi.com/skipAwait": "true"}
"""Annotation of Services by which Pulumi doesn't wait for them: the Deployment's pods are waited for already, and a
Service would take ten more seconds."""


class Router(pulumi.ComponentResource):
    """Endpoint picker with an Envoy in the same pod, or behind a Gateway, and the InferencePool that it chooses servers
    from.
    """

    service_name: pulumi.Output[str]
    """Name of the router's Service. Port 80 accepts requests if there is an Envoy, port 9090 serves metrics."""

    def __init__(self, name: str, args: RouterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Router", name, inputs(self, args), opts)
        service = _declare_all(self, name, router_manifests(args))
        self.service_name = when_declared(service, service_name(args["unit"]))
        register_outputs(self)


def service_name(unit: str) -> str:
    """Return the name of a unit's router Service, which most objects of the router have too."""
    return f"{unit}-epp"


def router_manifests(args: RouterArgs) -> list[Manifest]:
    """Return the Kubernetes objects of a unit's router.

    Raises:
        KitError: the catalogue has no such release.
    """
    facts = resolve_release(args["release"], args.get("override"))
    return manifests(facts, args, endpoint_picker_config(facts, args))


def manifests(facts: Release, args: RouterArgs, picker_config: str) -> list[Manifest]:
    """Return the Kubernetes objects of a unit's router in the format of a release, with `picker_config` as the endpoint
    picker's configuration.
    """
    objects = _Objects(facts, args, picker_config)
    return [
        objects.service_account(),
        *objects.config_maps(),
        *objects.rights(),
        objects.service(),
        *objects.render_service(),
        objects.network_policy(),
        *objects.for_several(),
        objects.deployment(),
        objects.pool(),
        *objects.objectives(),
    ]


class _Objects:
    """Manifests of one router."""

    def __init__(self, facts: Release, args: RouterArgs, picker_config: str) -> None:
        self.facts, self.dialect = facts, facts.router
        self.unit, self.namespace, self.version = args["unit"], args["namespace"], args.get("version")
        self.name, self.proxy_name = service_name(args["unit"]), f"{args['unit']}-envoy"
        self.pod_labels = labels.router(args["model"], args["unit"])
        self.picker_config = picker_config
        self.selector = labels.router_selector(args["unit"])
        self.gateway = args.get("gateway")
        self.traces_to = args.get("tracing")
        self.tracing = tracing_environment(f"{args['model']}-epp", self.traces_to)
        self.replicas = 1 if self.gateway else args.get("replicas") or self.dialect.replicas
        self.control_plane = args.get("control_plane_cidrs")
        self.signed_in = args.get("signed_in") or False
        self.pickers = f"{self.name}-pickers" if self.replicas > 1 else None
        self.picker_file = {config_file_name(picker_config): picker_config}
        self.reports_port = reports_port(facts, args)
        self.prompts_role = "prefill" if args["disaggregated"] else "aggregated"
        self.flow_control = facts.endpoint_picker.dialect.flow_control
        self.priorities = {
            str(priority): f"{self.unit}-priority-{str(priority).replace('-', 'minus-')}"
            for priority in args.get("priorities") or ()
        }
        largest_mib, salted = self.dialect.largest_body_mib, bool(args.get("cache_salts"))
        limit_gib = self.facts.proxy.memory_limit_gib
        bootstrap = partial(
            envoy.bootstrap,
            largest_mib,
            salted=salted,
            memory_limit_mib=limit_gib * 1024 if limit_gib else None,
            objectives=self.client_objectives(),
            sessions=session_headers(facts.endpoint_picker.dialect.version, picker_config),
        )
        self.proxy_config: Any = (
            mapped(self.namespace, lambda name: bootstrap(f"{self.pickers}.{name}.svc.cluster.local"))
            if self.pickers
            else bootstrap()
        )

    def client_objectives(self) -> ClientObjectives | None:
        """Return the headers for the endpoint picker about clients. None if the release has no flow control, clients
        don't authenticate at a front door, a Gateway sends the requests, or the configuration doesn't queue requests.
        """
        read, version = self.flow_control, self.facts.endpoint_picker.dialect.version
        if read is None or not self.signed_in or self.gateway or not holds_back(version, self.picker_config):
            return None
        named = tuple(self.priorities.items())
        return ClientObjectives(CLIENT_HEADER, PRIORITY_HEADER, read.objective_header, read.fairness_header, named)

    def objectives(self) -> list[Manifest]:
        """Return an InferenceObjective for each priority. The endpoint picker finds InferenceObjectives by name, in its
        own InferencePool only.
        """
        if self.flow_control is None:
            return []
        return [
            {
                "apiVersion": self.flow_control.objective_api,
                "kind": "InferenceObjective",
                "metadata": self.metadata(name),
                "spec": {
                    "priority": int(priority),
                    "poolRef": {"group": POOL_GROUP, "kind": "InferencePool", "name": self.unit},
                },
            }
            for priority, name in self.priorities.items()
        ]

    def metadata(self, name: str, more: Mapping[str, str] | None = None) -> ObjectMeta:
        own = {"app.kubernetes.io/name": self.name, "app.kubernetes.io/version": self.facts.endpoint_picker.image.tag}
        return object_metadata(name, self.namespace, {**own, **(more or {})})

    def service_account(self) -> Manifest:
        return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": self.metadata(self.name)}

    def config_maps(self) -> list[Manifest]:
        data: dict[str, dict[str, Any]] = {self.name: self.picker_file}
        if self.gateway is None:
            data[self.proxy_name] = {envoy.CONFIG_FILE: self.proxy_config}
        return [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": self.metadata(name), "data": files}
            for name, files in data.items()
        ]

    def rights(self) -> list[Manifest]:
        """Return the Roles of the endpoint picker and their bindings: it may read pods, InferencePools,
        InferenceObjectives and InferenceModelRewrites of its namespace.
        """
        resources = ["inferenceobjectives", "inferencemodelrewrites"]
        objectives = [_rule(group, resources) for group in self.dialect.objective_groups]
        return [
            *self.role_and_binding(f"{self.name}-sa", [_rule("", ["pods"])]),
            *self.role_and_binding(f"{self.name}-non-sa", [*objectives, _rule(POOL_GROUP, ["inferencepools"])]),
        ]

    def role_and_binding(self, name: str, rules: Sequence[PolicyRule], binding: str = "") -> list[Manifest]:
        bound = role_binding(self.metadata(binding or name), self.name, role=name)
        return [role(self.metadata(name), rules), bound]

    def service(self) -> Manifest:
        picker: ServicePort = {"name": "grpc-ext-proc", "protocol": "TCP", "port": envoy.PICKER_PORT}
        if self.dialect.picker_protocol:
            picker["appProtocol"] = self.dialect.picker_protocol
        ports: list[ServicePort] = [picker, {"name": "http-metrics", "protocol": "TCP", "port": METRICS_PORT}]
        if self.gateway is None:
            ports.append({"name": "http", "protocol": "TCP", "port": 80, "targetPort": envoy.REQUESTS_PORT})
        return self._service(self.name, {"type": "ClusterIP", "selector": self.selector, "ports": ports})

    def _service(self, name: str, spec: ServiceSpec) -> Manifest:
        metadata = {**self.metadata(name), "annotations": _NOT_WAITED_FOR}
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}

    def render_service(self) -> list[Manifest]:
        """Return the Service of the servers that tokenize prompts for the picker, if they publish KV cache events."""
        if self.reports_port is None:
            return []
        selector = labels.role_selector(self.unit, self.prompts_role)
        port: ServicePort = {"name": "http", "protocol": "TCP", "port": SERVER_PORT, "targetPort": SERVER_PORT}
        spec: ServiceSpec = {"type": "ClusterIP", "selector": selector, "ports": [port]}
        return [self._service(render_name(self.unit), spec)]

    def network_policy(self) -> Manifest:
        rules = network_policies.router_rules(
            self.selector, METRICS_PORT, self.control_plane, self.gateway, signed_in=self.signed_in
        )
        destinations = network_policies.router_destinations(
            self.unit, self.selector, self.control_plane, self.traces_to, self.reports_port
        )
        return network_policies.policy(self.metadata(self.name), self.selector, rules, destinations)

    def for_several(self) -> list[Manifest]:
        """Return the objects that several endpoint pickers need: the right to elect a leader, a headless Service with
        all their addresses, and a PodDisruptionBudget.

        The headless Service also contains terminating pods, since one of them may lead until it ends.
        """
        if self.pickers is None:
            return []
        leases = _rule("coordination.k8s.io", ["leases"], [*_READ, "create", "update", "patch", "delete"])
        events = _rule("", ["events"], ["create", "patch"])
        addresses: ServiceSpec = {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": self.selector,
            "ports": [
                {"name": "grpc-ext-proc", "protocol": "TCP", "port": envoy.PICKER_PORT},
                {"name": "grpc-health", "protocol": "TCP", "port": envoy.PICKER_HEALTH_PORT},
            ],
        }
        election = f"{self.name}-leader-election"
        return [
            *self.role_and_binding(election, [leases, events], f"{election}-binding"),
            self._service(self.pickers, addresses),
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": self.metadata(self.name),
                "spec": {"maxUnavailable": 1, "selector": {"matchLabels": self.selector}},
            },
        ]

    def deployment(self) -> Manifest:
        """Return the Deployment. A digest of the ConfigMaps in an annotation replaces the pods when the content
        changes, which the programs read only at their start.
        """
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": self.metadata(self.name, self.dialect.mode_label),
            "spec": {
                "replicas": self.replicas,
                "strategy": self.strategy(),
                "selector": {"matchLabels": self.selector},
                "template": {
                    "metadata": {
                        "labels": {**self.dialect.mode_label, **self.pod_labels},
                        "annotations": {CONFIG_ANNOTATION: mapped(self.proxy_config, self.config_digest)},
                    },
                    "spec": self.pod(),
                },
            },
        }

    def config_digest(self, proxy_config: str) -> str:
        files: list[dict[str, str]] = [self.picker_file]
        if self.gateway is None:
            files.append({envoy.CONFIG_FILE: proxy_config})
        return text_digest(json.dumps(files, sort_keys=True))

    def strategy(self) -> DeploymentStrategy:
        """Return the update strategy. Several pods are replaced one by one, without additional room; a single pod is
        ended before its successor starts, since there may be no room for both.
        """
        if self.pickers is None:
            return {"type": "Recreate"}
        return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}

    def pod(self) -> PodSpec:
        proxy_volume: Volume = {
            "name": "config",
            "configMap": {
                "name": self.proxy_name,
                "items": [{"key": envoy.CONFIG_FILE, "path": envoy.CONFIG_FILE}],
            },
        }
        pod: PodSpec = {
            "serviceAccountName": self.name,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": _GRACE_S,
            "securityContext": {**pod_security(NON_ROOT_USER_ID), "runAsGroup": NON_ROOT_USER_ID},
            "containers": [*([] if self.gateway else [self.proxy()]), self.picker()],
            "volumes": [
                *([] if self.gateway else [proxy_volume]),
                {"name": "plugins-config-volume", "configMap": {"name": self.name}},
                api_access_volume(),
            ],
        }
        if self.pickers:
            pod["topologySpreadConstraints"] = [self.spread()]
        return pod

    def spread(self) -> TopologySpreadConstraint:
        """Return the topology spread constraint over nodes, which prefers different nodes but allows one."""
        return {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": self.selector},
            "matchLabelKeys": ["pod-template-hash"],
        }

    def proxy(self) -> Container:
        """Return the container of Envoy. Envoy ends immediately on SIGTERM, so that a preStop hook delays the signal
        until requests under way had time to finish.

        A single pod has no such hook: no other pod accepts requests meanwhile, and its successor starts only after its
        end.
        """
        container: Container = {
            "name": self.dialect.proxy_container,
            "image": self.facts.proxy.image.pinned,
            "imagePullPolicy": "IfNotPresent",
            "command": ["envoy"],
            "args": list(self.facts.proxy.arguments),
            "env": [from_field("NS_NAME", "metadata.namespace"), from_field("POD_NAME", "metadata.name")],
            "ports": [
                {"name": f"http-{envoy.REQUESTS_PORT}", "containerPort": envoy.REQUESTS_PORT},
                {"name": f"metrics-{envoy.METRICS_PORT}", "containerPort": envoy.METRICS_PORT},
            ],
            "readinessProbe": {
                "httpGet": {"path": "/ready", "port": envoy.METRICS_PORT, "scheme": "HTTP"},
                "failureThreshold": 1,
                "periodSeconds": 5,
                "successThreshold": 1,
                "timeoutSeconds": 1,
            },
            "resources": _resources(self.facts.proxy),
            "securityContext": RESTRICTED_CONTAINER,
            "volumeMounts": [{"name": "config", "mountPath": "/etc/envoy", "readOnly": True}],
        }
        if self.pickers:
            container["lifecycle"] = {"preStop": {"sleep": {"seconds": _DRAIN_S}}}
        return container

    def picker(self) -> Container:
        """Return the container of the endpoint picker. A picker that isn't the leader is ready too: only Envoy
        distinguishes leaders. If it were unready, Pulumi would wait in vain for the Deployment, and the
        PodDisruptionBudget would allow no eviction.
        """
        facts = self.facts.endpoint_picker
        pool = ["--pool-name", self.unit, "--pool-namespace", field_value(self.namespace), "--pool-group", POOL_GROUP]
        config = ["--config-file", f"/config/{config_file_name(self.picker_config)}"]
        election = ["--ha-enable-leader-election"] if self.pickers else []
        experimental = [EXPERIMENTAL] if is_experimental(facts.dialect.version, self.picker_config) else []
        service = "liveness" if self.pickers else "inference-extension"
        health: Probe = {"grpc": {"port": envoy.PICKER_HEALTH_PORT, "service": service}}
        off = "--tracing=false"
        own = ["--tracing=true" if self.tracing and word == off else word for word in self.dialect.picker_arguments]
        container: Container = {
            "name": "epp",
            "image": facts.image.pinned,
            "imagePullPolicy": "IfNotPresent",
            "args": [*pool, *config, *election, *own, *experimental],
            "env": [
                from_field("NAMESPACE", "metadata.namespace"),
                from_field("POD_NAME", "metadata.name"),
                *plain_variables(self.tracing),
            ],
            "ports": [
                {"name": "grpc", "containerPort": envoy.PICKER_PORT},
                {"name": "grpc-health", "containerPort": envoy.PICKER_HEALTH_PORT},
                {"name": "metrics", "containerPort": METRICS_PORT},
            ],
            "livenessProbe": {**health, "initialDelaySeconds": 5, "periodSeconds": 10},
            "readinessProbe": {**health, "periodSeconds": 2},
            "resources": _resources(facts),
            "securityContext": RESTRICTED_CONTAINER,
            "volumeMounts": [{"name": "plugins-config-volume", "mountPath": "/config"}, api_access_mount()],
        }
        if self.gateway:
            container["startupProbe"] = _ANSWERS
        return container

    def pool(self) -> Manifest:
        protocol = {"appProtocol": self.dialect.pool_protocol} if self.dialect.pool_protocol else {}
        return {
            "apiVersion": f"{POOL_GROUP}/v1",
            "kind": "InferencePool",
            "metadata": self.metadata(self.unit),
            "spec": {
                "targetPorts": [{"number": SERVER_PORT}],
                **protocol,
                "selector": {"matchLabels": labels.unit_selector(self.unit, self.version)},
                "endpointPickerRef": {
                    "name": self.name,
                    "port": {"number": envoy.PICKER_PORT},
                    "failureMode": "FailClose",
                },
            },
        }


def config_file_name(config: str) -> str:
    """Return a file name for the endpoint picker's configuration that contains a digest of it: the endpoint picker
    reads its configuration only at its start, so that its pods must be replaced when it changes.
    """
    return f"plugins-{text_digest(config)}.yaml"


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str] = _READ) -> PolicyRule:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


def _resources(of: EndpointPicker | RouterProxy) -> ResourceRequirements:
    requests = {"cpu": str(of.requests.cpus), "memory": f"{of.requests.memory_gib}Gi"}
    limits: ResourceRequirements = {"limits": {"memory": f"{of.memory_limit_gib}Gi"}} if of.memory_limit_gib else {}
    return {"requests": requests, **limits}


def _declare_all(parent: pulumi.Resource, name: str, manifests: Sequence[Manifest]) -> pulumi.Resource:
    """Declare the router's objects; return the Service that accepts requests.

    The Deployment is declared after the objects that its pods read, and the Service after the Deployment is ready.
    """

    def one(manifest: Manifest, needed: Sequence[pulumi.Resource] = ()) -> pulumi.Resource:
        key = f"{name}-{manifest['kind'].lower()}-{manifest['metadata']['name']}"
        options = pulumi.ResourceOptions(parent=parent, custom_timeouts=timeouts(ROUTER_S), depends_on=list(needed))
        return declare(key, manifest, options)

    address = next(
        manifest for manifest in manifests if manifest["kind"] == "Service"
    )  # the router's own, which is first
    pods = next(manifest for manifest in manifests if manifest["kind"] == "Deployment")
    read = [one(manifest) for manifest in manifests if manifest is not address and manifest is not pods]
    return one(address, [one(pods, read)])
