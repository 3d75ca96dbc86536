"""Credentials by which a rehearsed stack downloads models and node images, and those of them that are valid.

A rehearsal can't decrypt the secrets of the user's stack, and has its own in their place. Like a user's, they are
rotated: an update passes on what `secrets.json` has by then, and the stand-ins for Hugging Face and Object Storage
refuse what is taken out of `valid.json`.
"""

import json
import secrets
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from llmd_base.private_files import write_private
from llmd_oke.planning.pools import SYSTEM_POOL
from pydantic import BaseModel, ConfigDict

from llmd_rehearsal.model_sources import source_hosts

FOLDER = "model-sources"
"""Name of the folder, in a local cluster's folder, with `secrets.json`, the credentials by config key, and with
`valid.json`, a `ValidCredentials`.
"""

TOKEN, URL, LINKS = "huggingFaceToken", "modelSourceUrl", "imageLinks"
"""Keys of the stack's config, without the prefix `llmd-oke:`, that have the credentials."""


class ValidCredentials(BaseModel):
    """Hugging Face tokens, and secret parts of links to the bucket with models, that are accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: tuple[str, ...]
    requests: tuple[str, ...]


def valid_credentials_file(state: Path) -> Path:
    """Return the path of the file with the valid credentials of the local cluster in the folder `state`."""
    return state / FOLDER / "valid.json"


def settings(stack: Mapping[str, Any], given: Collection[str], state: Path) -> dict[str, Any]:
    """Return the Pulumi config keys with a rehearsed stack's credentials: the link to the bucket with models, a Hugging
    Face token if the user's stack has one (its config keys are `given`), and links to images of nodes to import.

    They are stored in the local cluster's folder `state`; missing ones are generated, and valid at first.
    """
    file = state / FOLDER / "secrets.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        token, request = f"hf_{secrets.token_hex(17)}", secrets.token_urlsafe(24)
        valid = ValidCredentials(tokens=(token,), requests=(request,))
        write_private(valid_credentials_file(state), valid.model_dump_json())
        write_private(file, json.dumps({TOKEN: token, URL: source_hosts().link(request), LINKS: {}}))
    stored: dict[str, Any] = json.loads(file.read_text())
    pools = list(_pools_without_link(stack))
    if missing := set(pools) - stored[LINKS].keys():
        stored[LINKS] |= {pool: source_hosts().link(secrets.token_urlsafe(24)) for pool in missing}
        write_private(file, json.dumps(stored))
    needed = {URL: stored[URL]}
    if f"llmd-oke:{TOKEN}" in given:
        needed[TOKEN] = stored[TOKEN]
    if pools:
        needed[LINKS] = {pool: stored[LINKS][pool] for pool in pools}
    return {f"llmd-oke:{key}": value for key, value in needed.items()}


def _pools_without_link(stack: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pools whose image is imported by a link that is no part of the stack file, by their names in the config
    key `imageLinks`.
    """
    pools = {pool["name"]: pool for key in ("gpuPools", "cpuPools") for pool in stack.get(key) or ()}
    if system := stack.get("systemPool"):
        pools[SYSTEM_POOL] = system
    for name, pool in pools.items():
        image: dict[str, Any] = pool.get("image") or {}
        if "import" in image and "uri" not in image["import"]:
            yield name
