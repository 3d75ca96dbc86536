"""Secrets that a stack names and its user creates; in a rehearsal the node agent creates them.

Like a user of a real cluster, the agent can create a Secret only after its namespace exists, and never overwrites it.
"""

import logging
from collections.abc import Iterator, Sequence

import httpx2
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Secret
from llmd_oke.operations.objects import metadata

from llmd_rehearsal.agent_config import UserSecret
from llmd_rehearsal.watches import Changes, ObjectStore

_log = logging.getLogger(__name__)

_GATHER_S = 0.2
_CONFLICT, _NAMESPACE_ENDS, _UNAVAILABLE = 409, (403, 404), 429
"""HTTP statuses of the API server for a Secret that exists, for a namespace that is being deleted or is gone, and the
first one for a request that may succeed later.
"""


class SecretCreator:
    """Creator of the Secrets that a user creates for a real stack; it creates each Secret when the Secret's namespace
    appears in the cluster.
    """

    def __init__(self, client: AsyncClient, namespaces: ObjectStore[Namespace], secrets: Sequence[UserSecret]) -> None:
        self._client = client
        self._namespaces = namespaces
        self._secrets = secrets
        self._changes = Changes(_GATHER_S)

    async def run(self) -> None:
        """Create each Secret when its namespace appears, until cancelled; again if the API server fails meanwhile."""
        self._namespaces.subscribe(self._changes.note)
        await self._changes.follow(self._create)

    async def _create(self) -> None:
        for namespace in self._active():
            for secret in self._secrets:
                if namespace in secret.namespaces:
                    await self._create_in(namespace, secret)

    def _active(self) -> Iterator[str]:
        for namespace in self._namespaces:
            if namespace.status and namespace.status.phase == "Active":
                yield metadata(namespace).name or ""

    async def _create_in(self, namespace: str, secret: UserSecret) -> None:
        values = {key: path.read_text() for key, path in secret.files.items()}
        made = Secret(metadata=ObjectMeta(name=secret.name, namespace=namespace), type=secret.type, stringData=values)
        try:
            await self._client.create(made)
        except httpx2.HTTPError as error:
            code = error.status.code or 0 if isinstance(error, ApiError) else _UNAVAILABLE
            if code in (_CONFLICT, *_NAMESPACE_ENDS):
                return
            if code < _UNAVAILABLE:
                raise
            _log.warning("Secret %s in %s is not created yet: %r", secret.name, namespace, error)
            self._changes.note()
