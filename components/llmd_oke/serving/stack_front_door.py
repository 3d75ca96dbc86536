"""The address of all models of a stack: Envoys that authenticate clients and choose the model, and their Service."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke.kubernetes_types import ObjectMeta, Volume
from llmd_oke.objects import (
    Manifest,
    OverrideArgs,
    ReleaseRef,
    after,
    inputs,
    register_outputs,
    resolve_release,
    when_declared,
)
from llmd_oke.planning.tags import STACK_TAG
from llmd_oke.serving import authentication, labels, network_policies, stack_envoy
from llmd_oke.serving.envoy_bounds import bounds
from llmd_oke.serving.front_door import CONFIG_FILE, CONFIG_FOLDER, envoys
from llmd_oke.serving.manifests import ROUTER_S, declare, object_metadata, timeouts
from llmd_oke.serving.model_envoy import READY_PORT, Upstream
from llmd_oke.serving.stack_envoy import ClientLimits, EnvoySettings, ServedModel

NAME = "front-door"
"""Name of the stack's front door's Kubernetes objects, or prefix of their names."""

CERTIFICATE_SECRET, ACCESS_SECRET = f"{NAME}-certificate", f"{NAME}-access"
"""Secrets that the front door declares, or that cert-manager fills."""

_ANNOTATIONS = "oci-network-load-balancer.oraclecloud.com"
"""Prefix of the annotations for network load balancers (docs.oracle.com, ContEng, "Summary of Annotations for Load
Balancers and Network Load Balancers")."""


class FrontDoorUnitArgs(TypedDict):
    """Unit behind the front door: servers of a model with a router of their own."""

    service: str
    """Name of the Service that accepts the unit's requests on port 80, in the same namespace."""
    weight: NotRequired[int | None]
    """Weight of the unit, relative to those of the model's other units; equal weights if left out. With 0 the unit gets
    no requests."""


class FrontDoorModelArgs(TypedDict):
    """A model behind the front door. Models may share a served name: the requests are then balanced over the units of
    all of them.
    """

    name: str
    """Name of the model in paths: `/models/NAME/v1/…`."""
    served_name: str
    """Name of the model in the body of requests."""
    hosts: NotRequired[list[str] | None]
    """Host names that lead to this model only; none if left out."""
    units: list[FrontDoorUnitArgs]
    """Units that serve the model."""
    adapters: NotRequired[list[str] | None]
    """Names of LoRA adapters in the body of requests; none if left out."""
    max_model_len: NotRequired[int | None]
    """Length in tokens that counts for a sequence whose request doesn't limit it; 1,048,576 if left out."""
    holds_back: NotRequired[bool | None]
    """Whether the model's routers queue requests while servers are saturated. Requests that they refuse are then not
    retried; false if left out."""
    session_headers: NotRequired[list[str] | None]
    """Headers by which the model's routers keep sessions at one server; none if left out."""


class FrontDoorCertificateArgs(TypedDict):
    """TLS certificate of the front door, with its private key."""

    chain: pulumi.Input[str]
    """Certificate chain as PEM, the host's certificate first."""
    key: pulumi.Input[str]
    """Private key as PEM."""


class FrontDoorIssuerArgs(TypedDict):
    """Issuer of cert-manager for the front door's TLS certificate."""

    name: str
    """Name of the issuer."""
    kind: str
    """Kind of the issuer: `Issuer` or `ClusterIssuer`."""


class FrontDoorTokensArgs(TypedDict):
    """Tokens (JWT) by which clients authenticate at the front door."""

    issuer: str
    """Issuer in the tokens (`iss`)."""
    audiences: list[str]
    """Accepted audiences; a token must name one of them (`aud`)."""
    key_set: NotRequired[pulumi.Input[str] | None]
    """JSON Web Key Set with the public keys of the tokens' signatures. Either `key_set` or `key_set_uri`."""
    key_set_uri: NotRequired[str | None]
    """URI (https) from which the JSON Web Key Set is fetched periodically."""


class FrontDoorClientArgs(TypedDict):
    """Limits of one client at each of the front door's two Envoy replicas, which count separately. A limit that is left
    out is that of all clients.
    """

    requests_per_minute: NotRequired[int | None]
    """Maximum number of the client's requests per minute."""
    tokens_per_minute: NotRequired[int | None]
    """Maximum number of the client's tokens per minute, estimated when a request arrives."""
    concurrent_requests: NotRequired[int | None]
    """Maximum number of the client's concurrent requests to each model."""
    models: NotRequired[list[str] | None]
    """Served names of the models that the client may use."""


class FrontDoorLoadBalancerArgs(TypedDict):
    """OCI network load balancer before the front door."""

    public: bool
    """Whether the load balancer has a public IP address."""
    subnet_id: NotRequired[pulumi.Input[str] | None]
    """OCID of the load balancer's subnet; the cluster's default if left out."""
    security_group_ids: NotRequired[list[pulumi.Input[str]] | None]
    """OCIDs of the load balancer's network security groups; none if left out."""
    freeform_tags: NotRequired[dict[str, str] | None]
    """Freeform tags, in addition to the stack's own. Without any tags the load balancer gets the cluster's defaults for
    load balancers."""
    defined_tags: NotRequired[dict[str, str] | None]
    """Defined tags by `Namespace.Key`."""


class StackFrontDoorArgs(TypedDict):
    """Arguments of the front door of a stack."""

    namespace: str
    """Namespace of the models."""
    release: ReleaseRef
    """llm-d release of the catalogue, which names Envoy's image."""
    override: NotRequired[OverrideArgs | None]
    """Replacements for parts of the release; none if left out."""
    models: list[FrontDoorModelArgs]
    """Models behind the front door."""
    host: NotRequired[str | None]
    """Host name of the base URL; that of the Service if left out."""
    certificate: NotRequired[FrontDoorCertificateArgs | None]
    """TLS certificate and key. At most one of `certificate`, `certificate_secret` and `issuer`; plain HTTP without
    them."""
    certificate_secret: NotRequired[str | None]
    """Name of an existing Secret of type kubernetes.io/tls."""
    issuer: NotRequired[FrontDoorIssuerArgs | None]
    """Issuer of cert-manager from which the certificate is requested; needs `host`."""
    api_keys: NotRequired[dict[str, pulumi.Input[str]] | None]
    """API keys by the clients' names. At most one of `api_keys` and `tokens`; no authentication without them."""
    next_api_keys: NotRequired[dict[str, pulumi.Input[str]] | None]
    """Second API keys by the clients' names, which are valid beside those of `api_keys` while clients change to them;
    none if left out."""
    tokens: NotRequired[FrontDoorTokensArgs | None]
    """Tokens by which clients authenticate."""
    cache_secret: NotRequired[pulumi.Input[str] | None]
    """Secret from which the clients' `cache_salt`s are made, so that clients share no prefix cache; shared by all if
    left out. Only with `api_keys` or `tokens`."""
    requests_per_minute: NotRequired[int | None]
    """Limit of each client's requests per minute at each of the front door's two Envoy replicas; no limit if
    left out.
    """
    tokens_per_minute: NotRequired[int | None]
    """Limit of each client's tokens per minute at each of the front door's two Envoy replicas; no limit if left out."""
    concurrent_requests: NotRequired[int | None]
    """Limit of each client's concurrent requests to each model at each of the front door's two Envoy replicas, half of
    it for each of a replica's two threads; no limit if left out.
    """
    allowed_models: NotRequired[list[str] | None]
    """Served names of the models that clients may use; all if left out."""
    clients: NotRequired[dict[str, FrontDoorClientArgs] | None]
    """Limits of single clients, by their names, that differ from those of all clients."""
    priorities: NotRequired[dict[str, int] | None]
    """Priorities of single clients, by their names, which the front door sends to routers; all have 0 if left out."""
    load_balancer: NotRequired[FrontDoorLoadBalancerArgs | None]
    """Load balancer before the front door's Envoys; only pods of the cluster can reach the front door if left out."""
    control_plane_cidrs: NotRequired[list[str] | None]
    """CIDR blocks from which the API server opens connections to pods."""


class StackFrontDoor(pulumi.ComponentResource):
    """Front door of a stack: two Envoy replicas, the ConfigMaps and Secrets that they read, and the Service before
    them. Declare it after the units.

    Weights, keys, tokens and certificate are updated in place, which the Kubernetes provider must allow
    (`enable_config_map_mutable`, `enable_secret_mutable`), and Envoy applies them without a restart. All other changes
    create new Envoys beside the old ones, which finish the requests under way.
    """

    url: pulumi.Output[str]
    """Base URL of the front door, without `/v1`."""
    version: pulumi.Output[str]
    """Value of the label `llmd-oke/front-door` on the Envoys, known once they are ready."""

    def __init__(self, name: str, args: StackFrontDoorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        secrets = ("certificate", "api_keys", "next_api_keys", "tokens", "cache_secret")
        super().__init__("llmd-oke:index:StackFrontDoor", name, inputs(self, args, *secrets), opts)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(ROUTER_S))
        units = pulumi.ResourceOptions(depends_on=opts.depends_on if opts else None)
        key = f"{name}-{version(args)}"
        declare(name, disruption_budget(args), child)
        declare(name, network_policy(args), child)
        read = [
            declare(key, config_map(args), child),
            declare(f"{key}-traffic", traffic_config_map(args), child),
            *(declare(f"{name}-{suffix}", manifest, child) for suffix, manifest in secret_objects(args).items()),
        ]
        pods = declare(key, deployment(args), after(pulumi.ResourceOptions.merge(child, units), *read))
        service = declare(name, front_service(args), after(child, pods))
        self.url = when_declared(service, address(args))
        self.version = when_declared(pods, version(args))
        register_outputs(self)


def encrypted(args: StackFrontDoorArgs) -> bool:
    """Tell whether the front door uses TLS."""
    return bool(args.get("certificate") or args.get("certificate_secret") or args.get("issuer"))


def authenticated(args: StackFrontDoorArgs) -> bool:
    """Tell whether clients must authenticate."""
    return args.get("api_keys") is not None or args.get("tokens") is not None


def address(args: StackFrontDoorArgs) -> str:
    """Return the base URL of the front door, without `/v1`."""
    host = args.get("host") or f"{NAME}.{args['namespace']}.svc.cluster.local"
    return f"{'https' if encrypted(args) else 'http'}://{host}"


def version(args: StackFrontDoorArgs) -> str:
    """Return a digest of the bootstrap and of the clusters without weights, all of which need new Envoys when they
    change.
    """
    models = _models(args, weighted=False)
    texts = [stack_envoy.bootstrap(_settings(args)), stack_envoy.clusters(models, _concurrent_requests(args))]
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:8]


def config_map(args: StackFrontDoorArgs) -> Manifest:
    """Return the ConfigMap with Envoy's bootstrap, and the paths of its certificate if it has one."""
    data = {CONFIG_FILE: stack_envoy.bootstrap(_settings(args))}
    if encrypted(args):
        data[stack_envoy.CERTIFICATE_FILE] = stack_envoy.certificate()
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(args, _versioned_name(args)), "data": data}


def traffic_config_map(args: StackFrontDoorArgs) -> Manifest:
    """Return the ConfigMap with Envoy's clusters: the Services of the units and their weights."""
    data = {stack_envoy.TRAFFIC_FILE: stack_envoy.clusters(_models(args), _concurrent_requests(args))}
    metadata = _metadata(args, f"{_versioned_name(args)}-traffic")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def secret_objects(args: StackFrontDoorArgs) -> dict[str, Manifest]:
    """Return the Secrets or the cert-manager Certificate with the front door's certificate and authentication, by the
    suffixes of their resource names.
    """
    objects: dict[str, Manifest] = {}
    if (pair := args.get("certificate")) is not None:
        data = {"tls.crt": pair["chain"], "tls.key": pair["key"]}
        objects["certificate"] = _secret(args, CERTIFICATE_SECRET, "kubernetes.io/tls", data)
    elif (issuer := args.get("issuer")) is not None:
        objects["certificate"] = _issued_certificate(args, issuer)
    if (text := _authentication(args)) is not None:
        files: dict[str, pulumi.Input[str]] = {stack_envoy.ACCESS_FILE: text}
        if (secret := args.get("cache_secret")) is not None:
            models = _models(args)
            files[stack_envoy.SALTS_FILE] = pulumi.Output.from_input(secret).apply(
                lambda text: stack_envoy.salts(models, text)
            )
        objects["access"] = _secret(args, ACCESS_SECRET, "Opaque", files)
    return objects


def _authentication(args: StackFrontDoorArgs) -> pulumi.Output[str] | None:
    keys, tokens = args.get("api_keys"), args.get("tokens")
    if keys is not None:
        unresolved: Any = [keys, args.get("next_api_keys") or {}]
        return pulumi.Output.from_input(unresolved).apply(lambda known: authentication.api_keys(*known))
    if tokens is None:
        return None
    issuer, audiences, uri = tokens["issuer"], tokens["audiences"], tokens.get("key_set_uri")
    key_set = pulumi.Output.from_input(tokens.get("key_set"))
    return key_set.apply(lambda text: authentication.tokens(issuer, audiences, text, uri))


def _secret(args: StackFrontDoorArgs, name: str, kind: str, data: Mapping[str, pulumi.Input[str]]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(args, name),
        "type": kind,
        "stringData": {key: pulumi.Output.secret(value) for key, value in data.items()},
    }


def _issued_certificate(args: StackFrontDoorArgs, issuer: FrontDoorIssuerArgs) -> Manifest:
    """Return the Certificate of cert-manager, which fills a Secret and creates a new key for each renewal."""
    hosts = [args.get("host"), *(host for model in args["models"] for host in model.get("hosts") or ())]
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": _metadata(args, NAME),
        "spec": {
            "secretName": CERTIFICATE_SECRET,
            "dnsNames": [host for host in hosts if host],
            "issuerRef": {"group": "cert-manager.io", "kind": issuer["kind"], "name": issuer["name"]},
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        },
    }


def deployment(args: StackFrontDoorArgs) -> Manifest:
    """Return the Deployment of the front door's Envoys."""
    name = _versioned_name(args)
    volumes: dict[str, tuple[str, Volume]] = {
        "config": (CONFIG_FOLDER, {"configMap": {"name": name}}),
        "traffic": (stack_envoy.TRAFFIC_FOLDER, {"configMap": {"name": f"{name}-traffic"}}),
    }
    if authenticated(args):
        volumes["access"] = (stack_envoy.ACCESS_FOLDER, {"secret": {"secretName": ACCESS_SECRET}})
    if encrypted(args):
        secret = args.get("certificate_secret") or CERTIFICATE_SECRET
        volumes["certificate"] = (stack_envoy.CERTIFICATE_FOLDER, {"secret": {"secretName": secret}})
    models = {f"model-{i}": stack_envoy.FIRST_MODEL_PORT + i for i, _ in enumerate(args["models"])}
    return envoys(
        _metadata(args, name),
        labels.of_front_door_version(labels.stack_front_door_selector(), version(args)),
        resolve_release(args["release"], args.get("override")).proxy.image.pinned,
        {_scheme(args): stack_envoy.STACK_PORT, **models},
        volumes,
    )


def front_service(args: StackFrontDoorArgs) -> Manifest:
    """Return the Service of all models. It is declared after the Envoys are ready, so that Pulumi waits for nothing but
    a load balancer.
    """
    balancer = args.get("load_balancer")
    metadata = _metadata(args, NAME)
    if balancer is None:
        metadata["annotations"] = {"pulumi.com/skipAwait": "true"}
    else:
        metadata["annotations"] = load_balancer_annotations(balancer)
    port = 443 if encrypted(args) else 80
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": "ClusterIP" if balancer is None else "LoadBalancer",
            "selector": labels.of_front_door_version(labels.stack_front_door_selector(), version(args)),
            "ports": [{"name": _scheme(args), "port": port, "targetPort": stack_envoy.STACK_PORT, "protocol": "TCP"}],
        },
    }


def load_balancer_annotations(balancer: FrontDoorLoadBalancerArgs) -> dict[str, pulumi.Input[str]]:
    """Return the Service's annotations by which OKE creates the load balancer. With network security groups OKE changes
    no security list.
    """
    annotations: dict[str, pulumi.Input[str]] = {
        "oci.oraclecloud.com/load-balancer-type": "nlb",
        f"{_ANNOTATIONS}/internal": "false" if balancer["public"] else "true",
    }
    annotations |= _tag_annotations(balancer)
    if (subnet := balancer.get("subnet_id")) is not None:
        annotations[f"{_ANNOTATIONS}/subnet"] = subnet
    if (groups := balancer.get("security_group_ids")) is not None:
        annotations[f"{_ANNOTATIONS}/oci-network-security-groups"] = pulumi.Output.all(*groups).apply(",".join)
        annotations[f"{_ANNOTATIONS}/security-list-management-mode"] = "None"
    return annotations


def _tag_annotations(balancer: FrontDoorLoadBalancerArgs) -> dict[str, str]:
    """Return the annotations with the load balancer's tags, which replace the cluster's default tags (OCI
    documentation, Applying Tags to Load Balancers). OKE reads them only when it creates the load balancer.
    """
    freeform, defined = balancer.get("freeform_tags") or {}, balancer.get("defined_tags") or {}
    if not freeform and not defined:
        return {}
    by_namespace: dict[str, dict[str, str]] = {}
    for name, value in defined.items():
        namespace, _, key = name.partition(".")
        by_namespace.setdefault(namespace, {})[key] = value
    own = {STACK_TAG: f"{pulumi.get_project()}/{pulumi.get_stack()}"}
    overrides = {"freeform": {**own, **freeform}, "defined": by_namespace}
    return {
        f"{_ANNOTATIONS}/initial-{kind}-tags-override": json.dumps(tags, sort_keys=True)
        for kind, tags in overrides.items()
        if tags
    }


def disruption_budget(args: StackFrontDoorArgs) -> Manifest:
    """Return the PodDisruptionBudget of the front door, by which draining nodes evicts one Envoy at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(args, NAME),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels.stack_front_door_selector()}},
    }


def network_policy(args: StackFrontDoorArgs) -> Manifest:
    """Return the network policy of the front door's Envoys. Any pod may send requests to the stack's port. Only
    measuring pods, monitoring and the API server may read metrics, and, if clients must authenticate, use the ports
    without authentication. Only the pod's own node can reach `/drain`.
    """
    models = [stack_envoy.FIRST_MODEL_PORT + i for i, _ in enumerate(args["models"])]
    known = network_policies.readers(args.get("control_plane_cidrs") or [])
    to_models: network_policies.Rule = known if authenticated(args) else {}
    rules: list[network_policies.Rule] = [
        {"ports": network_policies.tcp_ports(stack_envoy.STACK_PORT)},
        {"ports": network_policies.tcp_ports(READY_PORT), **known},
        {"ports": network_policies.tcp_ports(*models), **to_models},
    ]
    uri = (args.get("tokens") or {}).get("key_set_uri")
    provider = [network_policies.anywhere(authentication.key_set_address(uri)[1])] if uri else []
    destinations = [*network_policies.front_door_destinations(), *provider]
    return network_policies.policy(_metadata(args, NAME), labels.stack_front_door_selector(), rules, destinations)


def _settings(args: StackFrontDoorArgs) -> EnvoySettings:
    return EnvoySettings(
        models=_models(args, weighted=False),
        encrypted=encrypted(args),
        authenticated=authenticated(args),
        limits=_client(
            {
                "requests_per_minute": args.get("requests_per_minute"),
                "tokens_per_minute": args.get("tokens_per_minute"),
                "concurrent_requests": args.get("concurrent_requests"),
                "models": args.get("allowed_models"),
            }
        ),
        key_set_uri=(args.get("tokens") or {}).get("key_set_uri"),
        clients={name: _client(client) for name, client in (args.get("clients") or {}).items()},
        priorities=args.get("priorities") or {},
        tokens=args.get("tokens") is not None,
        salted=args.get("cache_secret") is not None,
    )


def _concurrent_requests(args: StackFrontDoorArgs) -> dict[str, int]:
    limits = {name: client.get("concurrent_requests") for name, client in (args.get("clients") or {}).items()}
    return {name: number for name, number in limits.items() if number is not None}


def _client(args: FrontDoorClientArgs) -> ClientLimits:
    models = args.get("models")
    return ClientLimits(
        args.get("requests_per_minute"),
        args.get("tokens_per_minute"),
        args.get("concurrent_requests"),
        None if models is None else tuple(models),
    )


def _models(args: StackFrontDoorArgs, *, weighted: bool = True) -> tuple[ServedModel, ...]:
    def upstreams(units: Sequence[FrontDoorUnitArgs]) -> tuple[Upstream, ...]:
        hosts = ((f"{unit['service']}.{args['namespace']}.svc.cluster.local", unit.get("weight")) for unit in units)
        return tuple(Upstream(host, 80, weight if weighted else None) for host, weight in hosts)

    return tuple(
        ServedModel(
            model["name"],
            model["served_name"],
            tuple(model.get("hosts") or ()),
            upstreams(model["units"]),
            model.get("max_model_len") or bounds().longest_sequence,
            bool(model.get("holds_back")),
            tuple(model.get("session_headers") or ()),
            tuple(model.get("adapters") or ()),
        )
        for model in args["models"]
    )


def _scheme(args: StackFrontDoorArgs) -> str:
    return "https" if encrypted(args) else "http"


def _metadata(args: StackFrontDoorArgs, name: str) -> ObjectMeta:
    return object_metadata(name, args["namespace"])


def _versioned_name(args: StackFrontDoorArgs) -> str:
    return f"{NAME}-{version(args)}"
