"""Pulls from a private registry as kubelets make them: with the credentials of a pod's image pull Secrets.

A simulated node has no images: it asks the registry for the manifest and downloads nothing. Of an image that a node has
already, a kubelet of Kubernetes 1.35 or newer asks again unless the pod has a Secret by which it was pulled, or the
same credentials (policy `NeverVerifyPreloadedImages`;
https://github.com/kubernetes/kubernetes/blob/030880a5/pkg/kubelet/images/pullmanager/image_pull_manager.go).
"""

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
from lightkube.resources.core_v1 import Pod, Secret
from llmd_oke.operations.objects import metadata, texts

from llmd_rehearsal.agent_config import RegistryConfig
from llmd_rehearsal.pods.containers import StartError
from llmd_rehearsal.watches import ObjectStore, spec_of

_TIMEOUT_S = 10.0
_DATA = ".dockerconfigjson"
_ACCEPT = {
    "Accept": "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"
}


@dataclass(frozen=True)
class PullCredentials:
    """User and password of a registry in an image pull Secret, and the Secret's identity."""

    secret_uid: str
    basic: str
    """User and password in base64, as HTTP's scheme Basic has them."""

    @property
    def digest(self) -> str:
        """SHA-256 of user and password; nodes keep no password."""
        return hashlib.sha256(self.basic.encode()).hexdigest()


class ImagePuller:
    """Puller of images of one private registry for all simulated nodes; images of other registries need no pull."""

    def __init__(self, registry: RegistryConfig | None, secrets: ObjectStore[Secret]) -> None:
        self._registry = registry
        self._secrets = secrets
        self._client = httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False)
        self._pulled: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def forget(self, node: str) -> None:
        """Forget which images a node has, whose disks are gone."""
        for known in [known for known in self._pulled if known[0] == node]:
            del self._pulled[known]

    async def pull(self, pod: Pod, image: str) -> None:
        """Ask the registry for an image unless the pod's node has it and the pod may use it.

        Raises:
            StartError: none of the pod's image pull Secrets has credentials that the registry accepts.
        """
        registry = self._registry
        if registry is None or not image.startswith(f"{registry.prefix}/"):
            return
        known = self._pulled[spec_of(pod).nodeName or "", image]
        found = list(self._credentials(pod, registry))
        for own in found:
            if own.secret_uid in known or own.digest in known:
                known.update({own.secret_uid, own.digest})
                return
        for own in found:
            if await self._ask(registry, image, own.basic):
                known.update({own.secret_uid, own.digest})
                return
        why = (
            "401 Unauthorized" if found else "401 Unauthorized: no image pull Secret of the pod has credentials for it"
        )
        raise StartError("ErrImagePull", f'failed to pull image "{image}": failed to authorize: {why}')

    def _credentials(self, pod: Pod, registry: RegistryConfig) -> Iterator[PullCredentials]:
        host = registry.prefix.partition("/")[0]
        for reference in spec_of(pod).imagePullSecrets or []:
            secret = self._secrets.get(metadata(pod).namespace or "", reference.name or "")
            if secret is None or _DATA not in texts(secret, "data"):
                continue
            try:
                accounts: dict[str, Any] = dict(json.loads(base64.b64decode(texts(secret, "data")[_DATA]))["auths"])
            except (ValueError, KeyError, TypeError):  # the API server accepts any JSON
                continue
            for server, account in accounts.items():
                if (urlsplit(server).netloc or server.partition("/")[0]) == host and isinstance(account, dict):
                    yield PullCredentials(metadata(secret).uid or "", _basic(cast("dict[str, object]", account)))

    async def _ask(self, registry: RegistryConfig, image: str, basic: str) -> bool:
        """Tell whether the registry gives a manifest to a user.

        Raises:
            StartError: the registry doesn't answer as registries that want tokens do.
        """
        name, _, digest = image.partition("/")[2].partition("@")
        name, _, tag = name.partition(":")
        url = f"{registry.url}/v2/{name}/manifests/{digest or tag or 'latest'}"
        try:
            refused = await self._client.head(url, headers=_ACCEPT)
            asked = dict(
                part.split("=", 1) for part in refused.headers["WWW-Authenticate"].partition(" ")[2].split(",")
            )
            query = {key: asked[key].strip('"') for key in ("service", "scope")}
            token = await self._client.get(
                asked["realm"].strip('"'), params=query, headers={"Authorization": f"Basic {basic}"}
            )
            if not token.is_success:
                return False
            answer = await self._client.head(
                url, headers={**_ACCEPT, "Authorization": f"Bearer {token.json()['token']}"}
            )
        except (httpx2.HTTPError, KeyError, ValueError) as error:
            raise StartError("ErrImagePull", f'failed to pull image "{image}": {error!r}') from error
        return answer.is_success


def _basic(account: Mapping[str, object]) -> str:
    """Return user and password of an account in base64: its `auth`, or made of its `username` and `password`."""
    pair = f"{account.get('username', '')}:{account.get('password', '')}"
    return str(account.get("auth") or base64.b64encode(pair.encode()).decode())
