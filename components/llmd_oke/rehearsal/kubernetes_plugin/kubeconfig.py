"""Kubeconfigs: as a path, as text, or from the environment."""

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llmd_oke.rehearsal.plugin_protocol.errors import Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig, dig_list, dig_map


@dataclass(frozen=True)
class Access:
    """Which API server, and who asks it: `cluster` and `user` are entries of a kubeconfig."""

    cluster: JsonObject
    user: JsonObject
    namespace: str = ""

    @property
    def server(self) -> str:
        """The server's address, `https://host:port`."""
        return str(self.cluster["server"]).rstrip("/")

    def tls(self) -> ssl.SSLContext:
        """What the client trusts and how it proves who it is."""
        authority = _text(self.cluster, "certificate-authority")
        context = ssl.create_default_context(cadata=authority)
        if self.cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = _text(self.user, "client-certificate"), _text(self.user, "client-key")
        if certificate and key:
            _load_certificate(context, certificate + "\n" + key)
        return context

    def headers(self) -> dict[str, str]:
        """What the client sends with every request to prove who it is."""
        if "exec" in self.user:
            raise Refusal("the stand-in Kubernetes plug-in runs no credential programs: a kubeconfig with `exec`")
        token_file = self.user.get("tokenFile")
        token = Path(token_file).read_text().strip() if token_file else self.user.get("token")
        return {"Authorization": f"Bearer {token}"} if token else {}


def load(text_or_path: str) -> JsonObject:
    """The kubeconfig in a text or in the file of that name; Refusal says why it is none, as client-go would."""
    content = _read(text_or_path)
    try:
        parsed = yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise Refusal(f"failed to parse kubeconfig: yaml: {error}") from None
    if not isinstance(parsed, dict):
        raise Refusal(
            "failed to parse kubeconfig: couldn't get version/kind; json parse error: json: cannot unmarshal string "
            'into Go value of type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
            'Kind string "json:\\"kind,omitempty\\"" }'
        )
    return {**parsed}


def from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """The path of the kubeconfig that the environment names, or the usual one."""
    return environment.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def find_access(config: JsonObject, context_name: str = "", cluster_name: str = "") -> Access | None:
    """The access that a kubeconfig grants by a context (its current one by default), or None where it has none."""
    context: Any = _entry(config, "contexts", "context", context_name or config.get("current-context")) or {}
    cluster = _entry(config, "clusters", "cluster", cluster_name or context.get("cluster"))
    if cluster is None or not cluster.get("server"):
        return None
    user = _entry(config, "users", "user", context.get("user")) or {}
    return Access(cluster, user, context.get("namespace") or "")


def _read(text_or_path: str) -> str:
    if "\n" in text_or_path or text_or_path.lstrip().startswith("{"):
        return text_or_path
    path = Path(text_or_path).expanduser()
    return path.read_text() if path.is_file() else text_or_path


def _entry(config: JsonObject, section: str, field: str, name: object) -> JsonObject | None:
    entries = dig_list(config, section)
    return next((dig_map(entry, field) for entry in entries if dig(entry, "name") == name), None)


def _text(entry: JsonObject, field: str) -> str | None:
    data, path = entry.get(f"{field}-data"), entry.get(field)
    if data:
        return base64.b64decode(data).decode()
    return Path(path).read_text() if path else None


def _load_certificate(context: ssl.SSLContext, pem: str) -> None:
    """OpenSSL reads a certificate from a file only."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)
