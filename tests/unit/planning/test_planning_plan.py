"""The records of a plan are what is declared and reported, and nothing else."""

import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[3]
MODULES = [import_module(f"llmd_oke.planning.{name}") for name in ("plan", "network")]
BY_ROLE = "NetworkChoices"
"""Its fields are read by the roles of subnets, and by the table of security rules."""

RECORDS = [
    item
    for module in MODULES
    for item in vars(module).values()
    if isinstance(item, type) and is_dataclass(item) and item.__module__ == module.__name__ and item.__name__ != BY_ROLE
]


def test_each_field_of_a_plans_records_is_read_somewhere_in_the_code():
    """Two ways of reading: a name after a dot in the kit's sources, or an argument of a component, copied by name."""
    paths = (path for folder in ("components", "packages") for path in (SOURCES / folder).rglob("*.py"))
    texts = {path: path.read_text() for path in paths}
    components = [text for path, text in texts.items() if path.parent.name in {"cluster", "operators", "serving"}]
    arguments = (name for text in components for name in re.findall(r"^    (\w+): ", text, re.MULTILINE))
    read = {*arguments, *(name for text in texts.values() for name in re.findall(r"\.(\w+)", text))}
    assert {
        f"{record.__name__}.{field.name}" for record in RECORDS for field in fields(record) if field.name not in read
    } == set()
