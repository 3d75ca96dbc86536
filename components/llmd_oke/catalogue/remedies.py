"""What helps against failures of an update, by the words that they come with."""

from functools import cache

from llmd_oke.catalogue.files import Entry, entry


class Remedy(Entry):
    """What helps where a failure says these words."""

    says: str
    remedy: str


class _Remedies(Entry):
    remedies: tuple[Remedy, ...]


@cache
def _remedies() -> tuple[Remedy, ...]:
    found = entry("operations", "remedies", _Remedies)
    assert found is not None  # noqa: S101 - the file is part of the kit
    return found.remedies


def remedy_for(failure: str) -> str | None:
    """What helps against a failure, None where nothing is known."""
    return next((known.remedy for known in _remedies() if known.says in failure), None)
