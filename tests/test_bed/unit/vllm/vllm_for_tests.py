"""Settings that simulated servers read from their command lines, and requests to their API."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from llmd_oke import catalogue
from llmd_rehearsal.vllm.command import CommandSettings, settings
from llmd_rehearsal.vllm.flags import StartRefusal

REPOSITORY = "openai/gpt-oss-120b"
NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
MODEL = next(model for model in map(catalogue.model, catalogue.model_names()) if model and model.vocabulary)


def read_flags(*flags: str, environment: Mapping[str, str] | None = None) -> CommandSettings:
    """Return what a server of gpt-oss-120b with these flags is told."""
    return settings(["vllm", "serve", REPOSITORY, *flags], environment or {})


def refusal(*flags: str, environment: Mapping[str, str] | None = None) -> StartRefusal:
    """Return why a server of gpt-oss-120b with these flags does not start."""
    with pytest.raises(StartRefusal) as error:
        read_flags(*flags, environment=environment)
    return error.value


async def post(client: Any, path: str, body: Mapping[str, object]) -> tuple[int, Any]:
    """Return status and document of an answer."""
    response = await client.post(path, json=body)
    return response.status, await response.json()


async def events(client: Any, path: str, body: Mapping[str, object]) -> list[Any]:
    """Return the events of a stream, decoded but for the last."""
    response = await client.post(path, json={"stream": True, **body})
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    *parts, done, rest = (await response.text()).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(part.removeprefix("data: ")) for part in parts]
