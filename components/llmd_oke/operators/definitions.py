"""Waiting for custom resource definitions that somebody else makes.

OKE counts an add-on as created before its operator has made its definitions, and the Kubernetes plug-in's patience for
a kind that isn't there is about a minute, whatever its timeouts say.
"""

import asyncio
import time
from collections.abc import Sequence

import httpx2
import pulumi
import yaml
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from pulumi.runtime import mocks
from pulumi.runtime.settings import get_monitor

from llmd_oke.errors import KitError

LOOK_S = 2.0

OPERATOR = "Look whether the operator that makes them runs; in OKE, at the add-on's state and its pods."


def when_established(
    names: Sequence[str],
    timeout_s: int,
    kubeconfig: pulumi.Input[str] | None = None,
    context: str | None = None,
    after: pulumi.Resource | None = None,
    remedy: str = OPERATOR,
) -> pulumi.Output[bool]:
    """True as soon as the cluster serves these definitions; in previews at once.

    Args:
        names: `plural.group`.
        timeout_s: limit in seconds.
        kubeconfig: text of the kubeconfig; the environment's if left out.
        context: context of the kubeconfig; its current one if left out.
        after: looks only when this is there, with all that it comes after.
        remedy: what to do where they don't come.

    Raises:
        KitError: (in the output) a definition is not there in time; says which.
    """

    async def look(text: str | None) -> bool:
        if not pulumi.runtime.is_dry_run() and not _is_test():
            await _wait(names, timeout_s, _client(text, context), remedy)
        return True

    # The URN without its resource: what waits for it may be a child, which must not depend on its parent's children.
    registered = after.urn.future() if after else None
    return pulumi.Output.all(kubeconfig, registered).apply(lambda values: look(values[0]))


async def _wait(names: Sequence[str], timeout_s: float, client: AsyncClient, remedy: str = OPERATOR) -> None:
    ends_at = time.monotonic() + timeout_s
    while missing := [name for name in names if not await _is_established(client, name)]:
        if time.monotonic() >= ends_at:
            raise KitError(
                f"The cluster has no definition of {', '.join(missing)} after {timeout_s:g} s.",
                remedy,
            )
        await asyncio.sleep(LOOK_S)


async def _is_established(client: AsyncClient, name: str) -> bool:
    """A cluster that doesn't answer (yet) is waited for too."""
    try:
        found = await client.get(CustomResourceDefinition, name)
    except ApiError as error:
        if error.status.code in {404, 429} or (error.status.code or 0) >= 500:
            return False
        raise KitError(f"The cluster doesn't show its definitions: {error.status.message}") from error
    except httpx2.HTTPError:
        return False
    conditions = (found.status.conditions if found.status else None) or []
    return any(condition.type == "Established" and condition.status == "True" for condition in conditions)


def _client(kubeconfig: str | None, context: str | None) -> AsyncClient:
    config = KubeConfig.from_dict(yaml.safe_load(kubeconfig)) if kubeconfig else KubeConfig.from_env()
    return AsyncClient(config=config.get(context))


def _is_test() -> bool:
    """Under Pulumi's mocks there is no cluster to look at."""
    return isinstance(get_monitor(), mocks.MockMonitor)
