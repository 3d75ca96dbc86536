"""The reference pages of the docs are made from the schema of stack files, the commands and the components."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import typer
import typer.main
from llmd_oke import package
from llmd_oke.cli.main import app
from typer.core import TyperCommand, TyperGroup

ROOT = Path(__file__).parents[2]
STACKS, FOLDER = ROOT / "stacks", ROOT / "docs" / "reference"
MADE = "Made from the code; `tests/package/test_reference_pages.py` holds it to that."

LIMITS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}

JsonObject = Mapping[str, object]


@pytest.mark.parametrize("name", ["stack-file", "commands", "components"])
def test_each_reference_page_equals_what_is_generated_from_the_code(name: str):
    """`LLMD_OKE_UPDATE_GOLDEN=1` writes it anew."""
    text = "\n".join([*{"stack-file": stack_file, "commands": commands, "components": components}[name](), ""])
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        (FOLDER / f"{name}.md").write_text(text)
    assert (FOLDER / f"{name}.md").read_text() == text


def stack_file() -> Iterator[str]:
    definitions = json.loads((STACKS / "schema.json").read_text())["$defs"]
    yield from ["# The stack file", "", "Every key of `stacks/Pulumi.<stack>.yaml`, by object. " + MADE]
    stack, base = definitions["Stack"], definitions["PartOfStack"]["properties"]["base"]
    stack = {**stack, "properties": {"base": base, **stack["properties"]}}
    whole = {name: definition for name, definition in definitions.items() if not name.startswith(("Stack", "PartOf"))}
    for title, definition in {"llmd-oke:stack": stack, **whole}.items():
        yield from ["", f"## {title}", "", cell(definition.get("description", ""))]
        if "properties" not in definition:
            continue
        yield from ["", "| key | type | default | what it is |", "|---|---|---|---|"]
        for key, value in definition["properties"].items():
            default = "required" if key in definition.get("required", ()) else code(value.get("default"))
            yield f"| `{key}` | {type_of(value)} | {default} | {cell(value.get('description', ''))} |"


def type_of(value: JsonObject) -> str:
    """A JSON schema's type in a few words, with links to objects of the page."""
    match value:
        case {"$ref": str(reference)}:
            name = reference.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": list(options)} | {"oneOf": list(options)}:
            return " or ".join(dict.fromkeys(type_of(option) for option in options if option != {"type": "null"}))
        case {"enum": list(values)}:
            return ", ".join(code(item) for item in values)
        case {"const": constant}:
            return code(constant)
        case {"type": "array", "items": dict(items)}:
            return f"list of {type_of(items)}"
        case {"type": "object", "additionalProperties": dict(items)}:
            return f"map of {type_of(items)}"
        case _:
            limits = [f"{words} {value[key]}" for key, words in LIMITS.items() if key in value]
            return ", ".join([str(value.get("type", "any")), *limits])


def commands() -> Iterator[str]:
    yield from ["# Commands", "", "Every command of `llmd-oke` with its options. " + MADE]
    root = typer.main.get_command(app)
    yield from command_pages(root, typer.Context(root, info_name="llmd-oke"))


def command_pages(command: TyperCommand | TyperGroup, context: typer.Context) -> Iterator[str]:
    """A section for each command that does something, in the order of `--help`."""
    if isinstance(command, TyperGroup):
        if command.invoke_without_command and context.parent:
            yield from command_section(command, context)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            yield from command_pages(child, typer.Context(child, info_name=name, parent=context))
        return
    yield from command_section(command, context)


def command_section(command: TyperCommand | TyperGroup, context: typer.Context) -> Iterator[str]:
    """Return what a command does, and its options."""
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield from ["", f"## {context.command_path}", "", "```", " ".join(usage.split()), "```", ""]
    yield paragraphs(command.help or "")
    rows = [record for parameter in command.params if (record := parameter.get_help_record(context))]
    if rows:
        yield from ["", "| option | what it is |", "|---|---|"]
        yield from (f"| `{cell(names)}` | {cell(text)} |" for names, text in rows)


def components() -> Iterator[str]:
    schema = package.schema()
    yield from ["# Components", "", "What other Pulumi programs import, in Python by the snake-case names. " + MADE]
    for token, component in sorted(schema["resources"].items()):
        yield from ["", f"## {token.rpartition(':')[2]}", "", f"`{token}`", ""]
        yield paragraphs(component.get("description", ""))
        required = component.get("requiredInputs", ())
        yield from table("argument", component.get("inputProperties", {}), required)
        yield from table("output", component.get("properties", {}), ())
    yield from ["", "# Types"]
    for token, definition in sorted(schema.get("types", {}).items()):
        yield from ["", f"## {token.rpartition(':')[2]}", "", paragraphs(definition.get("description", ""))]
        yield from table("field", definition.get("properties", {}), definition.get("required", ()))


def table(kind: str, properties: Mapping[str, JsonObject], required: Iterable[str]) -> Iterator[str]:
    if not properties:
        return
    yield from ["", f"| {kind} | type | what it is |", "|---|---|---|"]
    for name, value in properties.items():
        mark = " (required)" if name in set(required) else ""
        yield f"| `{name}`{mark} | {package_type(value)} | {cell(str(value.get('description', '')))} |"


def package_type(value: JsonObject) -> str:
    """The type of a property of Pulumi's package schema in a few words."""
    match value:
        case {"$ref": str(reference)}:
            name = reference.rpartition(":")[2].rpartition("/")[2]
            return "any" if name == "Any" else f"[{name}](#{name.lower()})" if reference.startswith("#") else name
        case {"type": "array", "items": dict(items)}:
            return f"list of {package_type(items)}"
        case {"type": "object", "additionalProperties": dict(items)}:
            return f"map of {package_type(items)}"
        case _:
            return str(value.get("type", "any"))


def code(value: object) -> str:
    if isinstance(value, dict) and value:
        return "as below"
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def cell(text: str) -> str:
    """Text in one line, that ends no cell of a table."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def paragraphs(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())
