"""Gateway and front door of a rehearsed stack's models.

A rehearsal has no OCI load balancers, no cert-manager, and none of the user's certificates. Whichever Gateway provider
the stack names, Envoy Gateway runs. API keys, the token provider's keys and certificates are generated once for the
rehearsal, because secrets encrypted for the real stack can't be decrypted here.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmd_oke.catalogue.releases import CrdFiles
from llmd_oke.catalogue.serving import gateway_provider
from llmd_oke.planning import Plan
from llmd_oke.values import Entry, entry_reader

if TYPE_CHECKING:
    from llmd_oke.serving.gateway import GatewayListenerArgs
import json
import secrets
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from llmd_base.private_files import write_private
from llmd_oke.config import StackConfig
from llmd_oke.config.front_door import FrontDoorConfig

from llmd_rehearsal.agent_config import UserSecret
from llmd_rehearsal.control_plane import CLUSTER_DOMAIN

PROVIDER = "envoy-gateway"

SIMULATED_POOLS = "InferencePools of Envoy Gateway (a stand-in for Envoy AI Gateway is its extension server)"

FOLDER = "front-door"
"""Name of the folder, in a local cluster's folder, with the front door's `secrets.json`, and with `chain.pem` and
`key.pem`, its certificate, which clients trust, and its key.
"""

CLIENT = "rehearsal"
"""Name of a client of the front door that gets an API key in every rehearsal, beside the clients that the stack file
names.
"""

_LIFE = timedelta(days=365)

GATEWAY_FOLDER = "gateway"
"""Name of the folder, in a local cluster's folder, with `chain.pem` and `key.pem`, the certificate of a Gateway that
the stack creates, and its key.
"""

_KEPT = ("mode", "name", "namespace", "listener", "clusterListener", "host", "port", "tls")
"""Keys of the stack file's `gateway` that the rehearsed stack keeps."""


class GatewayParts(Entry):
    """Content of `values/rehearsal/envoy-gateway.yaml`: title, definitions and objects of Envoy Gateway for the local
    cluster.
    """

    title: str
    definitions: tuple[CrdFiles, ...]
    objects: tuple[dict[str, Any], ...]


gateway_parts = entry_reader("rehearsal", "envoy-gateway", GatewayParts)
"""Return the content of `values/rehearsal/envoy-gateway.yaml`."""


def rehearsed_gateway(stack: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stack file's content with its Gateway's settings adapted to the rehearsal; unchanged if the stack has no
    Gateway.
    """
    gateway: Mapping[str, Any] | None = stack.get("gateway")
    if gateway is None:
        return dict(stack)
    kept = {key: gateway[key] for key in _KEPT if key in gateway}
    service = {"service": {"name": gateway["name"]}} if gateway["mode"] == "existing" else {}
    return {**stack, "gateway": {**kept, "provider": PROVIDER, **service}}


def preinstalled_objects(plan: Plan) -> list[dict[str, Any]]:
    """Return the objects that a cluster must have before a stack with a Gateway is deployed: Envoy Gateway, and the
    Gateway itself if the stack names an existing one. The list is empty without a Gateway.
    """
    gateway = plan.gateway
    if gateway is None:
        return []
    parts = list(gateway_parts().objects)
    if gateway.created is not None:
        return parts
    from llmd_oke.serving.gateway import gateway_manifests  # noqa: PLC0415 - it loads Pulumi

    names = dict.fromkeys(name or "http" for name in (gateway.cluster_listener, gateway.listener))
    listeners: list[GatewayListenerArgs] = [{"name": name, "port": 80 + i * 8000} for i, name in enumerate(names)]
    *further, made = gateway_manifests(
        {"namespace": gateway.namespace, "provider": PROVIDER, "gateway": gateway.name, "listeners": listeners}
    )
    everybody = [
        {**listener, "allowedRoutes": {"namespaces": {"from": "All"}}} for listener in made["spec"]["listeners"]
    ]
    namespace: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": gateway.namespace}}
    namespaces = [] if gateway.namespace == plan.namespace else [namespace]
    return [*parts, *namespaces, *map(dict, further), {**made, "spec": {**made["spec"], "listeners": everybody}}]


def gateway_secrets(plan: Plan, state: Path) -> tuple[UserSecret, ...]:
    """Return the Secret with the certificate of a Gateway that the stack creates, if the stack file names one; write
    certificate and key into the local cluster's folder `state` unless those for the Gateway's host are there.
    """
    created = plan.gateway.created if plan.gateway else None
    if created is None or created.tls is None or created.host is None:
        return ()
    folder = state / GATEWAY_FOLDER
    chain, key, host = (folder / name for name in ("chain.pem", "key.pem", "host"))
    if not (host.is_file() and host.read_text() == created.host):
        folder.mkdir(parents=True, exist_ok=True)
        made = _certificate(ec.generate_private_key(ec.SECP256R1()), [created.host])
        write_private(key, made["key"])
        chain.write_text(made["chain"])
        host.write_text(created.host)
    files = {"tls.crt": chain, "tls.key": key}
    return (UserSecret(name=created.tls, namespaces=(plan.namespace,), type="kubernetes.io/tls", files=files),)


def gateway_aliases(plan: Plan) -> dict[str, str]:
    """Return the name of the Service in front of a Gateway that the stack creates, by the Gateway's host name, if it
    has one. Outside a rehearsal the user's DNS has the record.
    """
    created, provider = plan.gateway.created if plan.gateway else None, gateway_provider(PROVIDER)
    if created is None or created.host is None or provider is None:
        return {}
    return {created.host: f"{created.name}.{provider.namespace}.svc.{CLUSTER_DOMAIN}"}


def simulated_gateway(plan: Plan) -> tuple[str, ...]:
    """Return the names of the parts of a stack's Gateway that aren't real in a rehearsal."""
    gateway = plan.gateway
    if gateway is None:
        return ()
    other = gateway.provider.name
    played = () if other == PROVIDER else (f"gateway provider {other} ({gateway_parts().title} runs in its place)",)
    return (*played, SIMULATED_POOLS)


def rehearsed_front_door(stack: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stack file's content with its front door's settings adapted to the rehearsal; unchanged if the stack has
    no front door.
    """
    door: Mapping[str, Any] | None = stack.get("frontDoor")
    if door is None:
        return dict(stack)
    kept = {key: value for key, value in door.items() if key not in {"exposure", "loadBalancer"}}
    if isinstance(kept.get("authentication"), dict):  # the rehearsal has its own key set in place of the provider's
        kept["authentication"] = {key: value for key, value in kept["authentication"].items() if key != "jwksUri"}
    tls: Mapping[str, Any] | None = kept.get("tls")
    if tls is not None and tls["kind"] != "secret":
        kept["tls"] = {"kind": "config"}
    return {**stack, "frontDoor": kept}


def front_door_secrets(plan: Plan, state: Path) -> tuple[UserSecret, ...]:
    """Return the Secret with the front door's certificate, if the stack file names one. Its files are those that
    `settings` writes into the local cluster's folder `state`.
    """
    tls = plan.front_door.tls if plan.front_door else None
    if tls is None or tls.kind != "secret":
        return ()
    files = {"tls.crt": state / FOLDER / "chain.pem", "tls.key": state / FOLDER / "key.pem"}
    return (UserSecret(name=tls.name, namespaces=(plan.namespace,), type="kubernetes.io/tls", files=files),)


def settings(stack: Mapping[str, Any], state: Path) -> dict[str, Any]:
    """Return the Pulumi config keys with the front door's generated secrets, such as API keys and certificate; empty
    for a stack without a front door.

    The secrets are stored in the local cluster's folder and generated anew only if the hosts or clients change.
    """
    if "frontDoor" not in stack:
        return {}
    from llmd_oke.serving.stack_front_door import NAME  # noqa: PLC0415 - it loads Pulumi

    door = FrontDoorConfig.model_validate(stack["frontDoor"])
    namespace: str = stack.get("namespace", StackConfig.model_fields["namespace"].default)
    hosts = [*([door.host] if door.host else []), *door.hosts, f"{NAME}.{namespace}.svc.cluster.local"]
    clients: list[str] = sorted({CLIENT, *(door.limits.clients if door.limits else ()), *door.priorities})
    asked = {"clients": clients, "hosts": hosts}
    file = state / FOLDER / "secrets.json"
    settings_document: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if settings_document.get("asked") != asked or "frontDoorCacheSecret" not in settings_document:
        settings_document = {"asked": asked, **_made(clients, hosts)}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private(file, json.dumps(settings_document))
    pair = settings_document["frontDoorCertificate"]
    write_private(file.with_name("key.pem"), pair["key"])
    file.with_name("chain.pem").write_text(pair["chain"])
    others = {"asked", *(["frontDoorCertificate"] if door.tls and door.tls.kind == "secret" else [])}
    return {f"llmd-oke:{key}": value for key, value in settings_document.items() if key not in others}


def _made(clients: list[str], hosts: list[str]) -> dict[str, Any]:
    key = ec.generate_private_key(ec.SECP256R1())
    point = key.public_key().public_numbers()
    x, y = (urlsafe_b64encode(number.to_bytes(32)).decode().rstrip("=") for number in (point.x, point.y))
    return {
        "frontDoorKeys": {client: f"sk-{secrets.token_urlsafe(32)}" for client in clients},
        "frontDoorKeySet": json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "kid": CLIENT, "x": x, "y": y}]}),
        "frontDoorCacheSecret": secrets.token_hex(32),
        "frontDoorCertificate": _certificate(key, hosts),
    }


def _certificate(key: ec.EllipticCurvePrivateKey, hosts: list[str]) -> dict[str, str]:
    """Return a certificate of a key for some hosts, as `chain`, and the key itself, as `key`, both PEM."""
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "llmd-oke rehearsal")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + _LIFE)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return {
        "chain": builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode(),
        "key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
    }
