"""The JSON Schema of a stack file, for editors. `python -m llmd_oke.config.schema` prints it."""

import json
from typing import Any

from llmd_oke.config.document import CONFIG_KEY
from llmd_oke.config.stack import StackConfig
from llmd_oke.config.topology import SHORT_FORM_PATTERN, SHORT_FORMS


def stack_file_schema() -> dict[str, Any]:
    """The schema of `stacks/Pulumi.<stack>.yaml`: our object is described, everything else of Pulumi's is let through.

    It says 2020-12 and uses nothing that a reader of draft 7 doesn't know.
    """
    stack = StackConfig.model_json_schema(by_alias=True)
    definitions = stack.pop("$defs")
    _drop_titles([stack, *definitions.values()])
    definitions["Topology"] = _with_short_form(definitions["Topology"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "llmd-oke stack file",
        "type": "object",
        "properties": {"config": {"type": "object", "properties": {CONFIG_KEY: stack}, "required": [CONFIG_KEY]}},
        "required": ["config"],
        "$defs": definitions,
    }


def schema_text() -> str:
    """The content of `stacks/schema.json`."""
    return json.dumps(stack_file_schema(), indent=2) + "\n"


def _drop_titles(parts: list[dict[str, Any]]) -> None:
    """Take away the titles of keys, which only repeat the keys with other capitals."""
    for part in parts:
        for described in part.get("properties", {}).values():
            described.pop("title", None)


def _with_short_form(long_form: dict[str, Any]) -> dict[str, Any]:
    short_form = {"type": "string", "pattern": SHORT_FORM_PATTERN, "description": SHORT_FORMS}
    return {"title": "Topology", "anyOf": [short_form, long_form]}


if __name__ == "__main__":
    print(schema_text(), end="")
