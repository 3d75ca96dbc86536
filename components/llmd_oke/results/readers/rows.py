"""From what a file says and what is known beside it to a row."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from llmd_oke.catalogue import gpu_names, model_of_repository
from llmd_oke.config.topology import Topology
from llmd_oke.results.files import explain
from llmd_oke.results.readers.document import UnreadableError
from llmd_oke.results.readers.source import Source
from llmd_oke.results.reading import Hints, Read
from llmd_oke.results.row import CONDITIONS, Row

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
"""Fields that a row can't be without, and the hints that give them."""

_OTHER_BOARDS = frozenset({"PCIe", "NVL"})
"""Boards of a product that have other limits than the catalogue's."""

_VENDORS = ("AMD-Instinct-", "AMD Instinct ", "NVIDIA-", "NVIDIA ")


def to_row(found: Mapping[str, Any], hints: Hints) -> Row:
    """The row of what a file says, completed by hints. Where neither says it, all of a deployment was
    measured, and its GPUs follow from its topology.

    Raises:
        UnreadableError: something needed is in neither, a value is impossible, or nothing was measured.
    """
    fields = {name: value for name, value in found.items() if value is not None}
    for name, hint in _HINTED.items():
        value = getattr(hints, hint)
        if value is not None:
            fields.setdefault(name, value)
    fields.setdefault("subject", "end-to-end")
    if "gpus_counted" not in fields and "topology" in fields:
        fields["gpus_counted"] = fields.get("copies", 1) * _gpus(fields["topology"])
    missing = [what for name, what in _NEEDED.items() if name not in fields]
    if missing:
        raise UnreadableError(f"does not say {'; '.join(missing)}: give it as a hint")
    known = model_of_repository(str(fields["model"]))
    fields["model"] = known.name if known else fields["model"]
    fields["notes"] = (*fields.get("notes", ()), *hints.notes)
    try:
        row = Row.model_validate(fields)
    except ValidationError as error:
        raise UnreadableError(explain(error)) from error
    if why := row.nothing_measured:
        raise UnreadableError(f"measured nothing: {why}")
    return row


def one_row(source: Source, row: Callable[[], Row]) -> Read:
    """A file that holds one row, or why it holds none."""
    try:
        return Read((row(),))
    except UnreadableError as error:
        return Read(rejected=(source.rejected(str(error)),))


def _gpus(topology: str) -> int:
    try:
        return Topology.model_validate(topology).gpus
    except ValueError as error:
        raise UnreadableError(f"{topology!r} is no topology such as 8p-tp1-4d-tp2 or agg-tp1-16r") from error


def gpu_product(name: str | None) -> str | None:
    """The product without its vendor: `MI300X` of `AMD-Instinct-MI300X`, `H100` of `NVIDIA-H100-80GB-HBM3`."""
    words = (name or "").replace(" ", "-").split("-")
    known = [word for word in words if word in gpu_names()]
    if known and not _OTHER_BOARDS.intersection(words):
        return known[0]
    for vendor in _VENDORS:
        if name and name.startswith(vendor):
            return name.removeprefix(vendor)
    return name
