"""Kubeconfig files for a world's API server, with the credentials inside, so that each stands alone."""

import base64
from pathlib import Path
from typing import Any

import yaml

from llmd_oke.rehearsal.control_plane import addresses
from llmd_oke.rehearsal.control_plane.pki import KeyPair

_NAME = "rehearsal"


def write(path: Path, user: KeyPair, authority: Path) -> Path:
    """Write a kubeconfig for this user; it works inside the world only."""
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content(user, authority), sort_keys=False))
    return path


def content(user: KeyPair, authority: Path) -> dict[str, Any]:
    """The kubeconfig as data."""
    cluster = {"server": addresses.API_SERVER, "certificate-authority-data": _base64(authority)}
    credentials = {"client-certificate-data": _base64(user.certificate), "client-key-data": _base64(user.key)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": _NAME, "user": credentials}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME}}],
        "current-context": _NAME,
    }


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
