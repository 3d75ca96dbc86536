"""Recorded answers of the real plug-in, and its values as messages of the protocol and back."""

import json
from pathlib import Path
from typing import Any

from llmd_rehearsal.plugin_protocol import UNKNOWN_TEXT, decode, encode
from llmd_rehearsal.plugin_values import UNKNOWN

RECORDINGS = Path(__file__).resolve().parents[4] / "shared" / "data" / "oci-provider"


def recorded(name: str) -> list[dict[str, Any]]:
    """The lines of a file of recordings; none where there are no recordings."""
    file = RECORDINGS / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def plain(value: Any) -> Any:
    """A recorded value, with what the engine doesn't know yet as the code has it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return UNKNOWN if value == UNKNOWN_TEXT else value


def struct(value: Any) -> Any:
    """A recorded value as a message."""
    return encode(plain(value))


def tree(message: Any) -> dict[str, Any]:
    """A message as a value."""
    return {**decode(message)}


def urn(type_: str, name: str) -> str:
    """A URN as the engine has it."""
    return f"urn:pulumi:dev::project::{type_}::{name}"
