"""Custom resource definitions that a simulated cluster has before its stack comes."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition

CONFLICT = 409


async def install(client: AsyncClient, definitions: Iterable[Mapping[str, Any]]) -> None:
    """Makes definitions; those that are there already stay as they are."""
    for manifest in definitions:
        try:
            await client.create(cast("CustomResourceDefinition", CustomResourceDefinition.from_dict(dict(manifest))))
        except ApiError as error:
            if error.status.code != CONFLICT:
                raise
