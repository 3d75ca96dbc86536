"""Service account tokens for a pod, asked for by TokenRequest and renewed before they expire."""

import asyncio
from collections.abc import Iterable, Mapping

from lightkube.core.async_client import AsyncClient
from lightkube.models.authentication_v1 import BoundObjectReference, TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod, ServiceAccountToken

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.pods.facts import spec_of
from llmd_oke.rehearsal.pods.volumes import TokenWish
from llmd_oke.rehearsal.watches import identity

RENEW_AT = 0.8  # of its life, as kubelet's token manager does
_LONGEST_S = 24 * 3600.0


def renewal_s(wishes: Iterable[TokenWish]) -> float | None:
    """Give the seconds until the first of these tokens is to be renewed, None when there are none."""
    lives = [min(wish.expiration_s * RENEW_AT, _LONGEST_S) for wish in wishes]
    return min(lives, default=None)


async def request_tokens(client: AsyncClient, pod: Pod, wishes: Iterable[TokenWish]) -> Mapping[TokenWish, str]:
    """Ask for all tokens, bound to the pod; ApiError when the service account isn't there."""
    wanted = list(wishes)
    return dict(zip(wanted, await asyncio.gather(*(_request(client, pod, wish) for wish in wanted)), strict=True))


async def _request(client: AsyncClient, pod: Pod, wish: TokenWish) -> str:
    who = identity(pod)
    bound = BoundObjectReference(apiVersion="v1", kind="Pod", name=who.name, uid=who.uid)
    audiences = [wish.audience] if wish.audience else []
    spec = TokenRequestSpec(audiences=audiences, boundObjectRef=bound, expirationSeconds=wish.expiration_s)
    account = spec_of(pod).serviceAccountName or "default"
    wanted = ServiceAccountToken(metadata=ObjectMeta(), spec=spec)
    answer = await client.create(wanted, account, namespace=who.namespace)
    if answer.status is None or answer.status.token is None:
        raise KitError(f"the API server gave no token for service account {who.namespace}/{account}")
    return answer.status.token
