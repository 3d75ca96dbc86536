"""Private registry of a rehearsed stack whose pods sign in by an image pull Secret: stand-in, account and Secret."""

import base64
import json
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from llmd_base.private_files import write_private
from llmd_oke.planning import Plan
from llmd_oke.planning.container_images import pull_namespaces
from llmd_pods import acceptance

from llmd_rehearsal.agent_config import RegistryConfig, UserSecret
from llmd_rehearsal.cluster_spec import ProcessSpec, TcpReady

PORT = 9306
FOLDER = "registry"
"""Name of the folder, in a local cluster's folder, with `accounts.json`, the passwords that the registry accepts by
user, and with the `.dockerconfigjson` of the pods' Secret.
"""
USER = "rehearsal"


@dataclass(frozen=True)
class PrivateRegistry:
    """Parts of a rehearsal by which simulated kubelets sign in to a private registry."""

    config: RegistryConfig
    secrets: tuple[UserSecret, ...]
    process: ProcessSpec


def private_registry(plan: Plan, state: Path) -> PrivateRegistry | None:
    """Return the private registry of a stack whose pods have an image pull Secret; None if they have none. Write an
    account and the Secret's content into the local cluster's folder `state` unless they are there for this registry.
    """
    mirror = plan.registry_mirror
    if mirror is None or mirror.pull_secret is None:
        return None
    accounts, content = state / FOLDER / "accounts.json", state / FOLDER / "dockerconfig.json"
    if not content.exists() or mirror.registry not in json.loads(content.read_text())["auths"]:
        accounts.parent.mkdir(parents=True, exist_ok=True)
        password = secrets.token_urlsafe(24)
        write_private(accounts, json.dumps({USER: [password]}))
        write_private(content, docker_config(mirror.registry, password))
    files = {".dockerconfigjson": content}
    secret = UserSecret(
        name=mirror.pull_secret,
        namespaces=tuple(dict.fromkeys((*pull_namespaces(plan), acceptance.NAMESPACE))),
        type="kubernetes.io/dockerconfigjson",
        files=files,
    )
    argv = (sys.executable, "-m", "llmd_rehearsal.registry", "--port", str(PORT), "--accounts", str(accounts))
    config = RegistryConfig(prefix=mirror.prefix, url=f"http://127.0.0.1:{PORT}")
    return PrivateRegistry(config, (secret,), ProcessSpec("registry", argv, readiness=TcpReady(PORT)))


def docker_config(host: str, password: str) -> str:
    """Return the content of an image pull Secret for the rehearsal's user of a registry."""
    account = {"username": USER, "password": password, "auth": base64.b64encode(f"{USER}:{password}".encode()).decode()}
    return json.dumps({"auths": {host: account}})
