"""Access to a file of results for the readers: parsing, lookup by path, and completion by hints to a row."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import yaml
from llmd_base.documents import explain, require_bounded
from llmd_base.row import CONDITIONS, Origin, Row
from pydantic import ValidationError

from llmd_bench.deployment import parse_short_form
from llmd_bench.files import Hints, ReadResults, Rejection, read_text

MOST = 1e300
"""Maximum absolute value of a figure in a results file; larger ones overflow in computations."""


class UnreadableError(Exception):
    """Error for a results file, or a part of it, that is no row; the message is the reason."""


@dataclass(frozen=True)
class SourceDocument:
    """Mapping at the path `where` in a document. Missing mappings are read as empty, missing values as None."""

    content: Mapping[str, Any] = field(default_factory=dict[str, Any])
    where: str = ""

    def part(self, *path: str) -> "SourceDocument":
        """Return the mapping at a path.

        Raises:
            UnreadableError: the value at the path is no mapping.
        """
        here = self
        for name in path:
            value = here.content.get(name)
            if value is not None and not isinstance(value, Mapping):
                raise UnreadableError(f"{here.path(name)} is no mapping")
            here = SourceDocument(cast("Mapping[str, Any]", value or {}), here.path(name))
        return here

    def parts(self, name: str) -> list["SourceDocument"]:
        """Return the mappings in a list.

        Raises:
            UnreadableError: the value is no list of mappings.
        """
        value: object = self.content.get(name) or []
        if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in cast("list[object]", value)):
            raise UnreadableError(f"{self.path(name)} is no list of mappings")
        entries = cast("list[Mapping[str, Any]]", value)
        return [SourceDocument(entry, f"{self.path(name)}[{index}]") for index, entry in enumerate(entries)]

    def number(self, name: str) -> float | None:
        """Return the number in a field; None if the field is missing.

        Raises:
            UnreadableError: the value is no number, or too large.
        """
        value = self.content.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MOST:
            raise UnreadableError(f"{self.path(name)} is {str(value)[:40]!r}, no number")
        return float(value)

    def whole(self, name: str) -> int | None:
        """Return the integer in a field; None if the field is missing.

        Raises:
            UnreadableError: the value is no integer.
        """
        value = self.number(name)
        if value is not None and value != int(value):
            raise UnreadableError(f"{self.path(name)} is {value!r}, no whole number")
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        """Return the text in a field; None if the field is missing, empty or `unknown`.

        Raises:
            UnreadableError: the value is a list or a mapping.
        """
        value = self.content.get(name)
        if isinstance(value, datetime):
            return value.isoformat()
        if isinstance(value, (list, dict)):
            raise UnreadableError(f"{self.path(name)} is no text")
        return None if value is None or value in {"", "unknown"} else str(value)

    def path(self, name: str) -> str:
        """Return the path of a field of this document."""
        return f"{self.where}.{name}" if self.where else name


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class SourceFile:
    """File of results to be read, parsed on first use."""

    path: Path

    @cached_property
    def text(self) -> str:
        """Text of the file.

        Raises:
            KitError: the file doesn't exist or is no text.
        """
        return read_text(self.path)

    @cached_property
    def mapping(self) -> Mapping[str, Any]:
        """Parsed JSON or YAML mapping of the file; empty if the file contains none."""
        document = self._parsed[0]
        return cast("Mapping[str, Any]", document) if isinstance(document, Mapping) else {}

    @cached_property
    def broken(self) -> Rejection | None:
        """Location and reason of a JSON or YAML syntax error; None if the file is valid or has another suffix."""
        return self._parsed[1]

    @cached_property
    def _parsed(self) -> tuple[object, Rejection | None]:
        try:
            return self._read(), None
        except json.JSONDecodeError as error:
            wrong = self.rejected(f"is not JSON: {error.msg}", error.lineno)
        except RecursionError:
            wrong = self.rejected("is nested too deeply")
        except yaml.YAMLError as error:
            mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
            wrong = self.rejected(f"is not YAML: {error}", mark.line + 1 if mark else None)
        except (ValueError, TypeError) as error:  # a date with a 13th month, a number that is too long, a list as a key
            wrong = self.rejected(f"has a value that is none: {error}")
        return None, wrong

    def _read(self) -> object:
        match self.path.suffix:
            case ".json":
                return json.loads(self.text)
            case ".yaml" | ".yml":
                require_bounded(self.text)
                return yaml.load(self.text, _Loader)  # noqa: S506 - a safe loader
            case _:
                return None

    def rejected(self, why: str, line: int | None = None) -> Rejection:
        """Return a rejection of the file, or of one of its lines, with the reason `why`."""
        return Rejection(str(self.path), line, why)

    def origin(self, tool: str, line: int | None = None) -> Origin:
        """Return the origin (tool, file and line) of a row that was read from the file."""
        return Origin(tool=tool, file=str(self.path), line=line)


_HINTED = {
    "model": "model",
    "gpu": "gpu",
    "gpus_counted": "gpus",
    "gpus_reserved": "gpus_reserved",
    "tensor_parallel_size": "tensor_parallel_size",
    "topology": "topology",
    "copies": "copies",
    **{name: name for name in CONDITIONS},
    "subject": "subject",
    "arrival": "arrival",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "concurrency": "concurrency",
    "max_num_seqs": "max_num_seqs",
    "basis": "basis",
}

_NEEDED = {
    "model": "the model (model)",
    "gpu": "which GPU it ran on (gpu)",
    "gpus_counted": "how many GPUs were used (gpus, or topology)",
    "input_tokens": "the prompt length (input_tokens)",
    "output_tokens": "the output length (output_tokens)",
    "arrival": "how requests arrive (arrival)",
}
"""Required fields of a row, with their description and the hint that supplies them."""

_OTHER_BOARDS = frozenset({"PCIe", "NVL"})
"""Boards of a GPU product whose limits differ from the catalogue's."""

_VENDORS = ("AMD-Instinct-", "AMD Instinct ", "NVIDIA-", "NVIDIA ")


def to_row(read_fields: Mapping[str, Any], hints: Hints) -> Row:
    """Return the row with the fields of a file, completed by hints. The default subject is the whole deployment; the
    default number of GPUs follows from the topology.

    Raises:
        UnreadableError: a required field is missing, a value is impossible, or nothing was measured.
    """
    fields = {name: value for name, value in read_fields.items() if value is not None}
    for name, hint in _HINTED.items():
        value = getattr(hints, hint)
        if value is not None:
            fields.setdefault(name, value)
    fields.setdefault("subject", "end-to-end")
    if "gpus_counted" not in fields and "topology" in fields:
        try:
            servers = parse_short_form(fields["topology"]).values()
        except ValueError as error:
            wrong = f"{fields['topology']!r} is no topology such as 8p-tp1-4d-tp2 or agg-tp1-16r"
            raise UnreadableError(wrong) from error
        unit_gpus = sum(
            role["replicas"] * role["tensorParallelSize"] * role.get("dataParallelSize", 1) for role in servers
        )
        fields["gpus_counted"] = fields.get("copies", 1) * unit_gpus
    missing = [what for name, what in _NEEDED.items() if name not in fields]
    if missing:
        raise UnreadableError(f"does not say {'; '.join(missing)}: give it as a hint")
    fields["model"] = hints.names.models.get(str(fields["model"]), fields["model"])
    fields["gpu"] = gpu_product(str(fields["gpu"]), hints.names.gpus)
    fields["notes"] = (*fields.get("notes", ()), *hints.notes)
    try:
        row = Row.model_validate(fields)
    except ValidationError as error:
        raise UnreadableError(explain(error)) from error
    if why := row.nothing_measured:
        raise UnreadableError(f"measured nothing: {why}")
    return row


def one_row(read: Callable[[SourceFile, Hints], Row], source: SourceFile, hints: Hints) -> ReadResults:
    """Read a results file that contains one row; if the file can't be read as a row, the returned result has no row but
    the reason.
    """
    try:
        return ReadResults((read(source, hints),))
    except UnreadableError as error:
        return ReadResults(rejected=(source.rejected(str(error)),))


def gpu_product(name: str, products: Collection[str]) -> str:
    """Return a GPU's product name: the one of `products` that is a word of `name` (`H100` for `NVIDIA-H100-80GB-HBM3`),
    or else the name without vendor (`MI300X` for `AMD-Instinct-MI300X`). Boards that differ from the product of that
    name, such as PCIe ones, keep their whole name without vendor.
    """
    words = name.replace(" ", "-").split("-")
    known = [word for word in words if word in products]
    if known and not _OTHER_BOARDS.intersection(words):
        return known[0]
    for vendor in _VENDORS:
        if name.startswith(vendor):
            return name.removeprefix(vendor)
    return name
