"""What helps against failures of an update, by the words that they come with."""

from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry


class Remedy(Entry):
    """What helps where a failure says these words."""

    says: str
    remedy: str


class _Remedies(Entry):
    remedies: tuple[Remedy, ...]


@cache
def _remedies() -> tuple[Remedy, ...]:
    return required_entry("operations", "remedies", _Remedies).remedies


def remedy_for(failure: str) -> str | None:
    """What helps against a failure, None where nothing is known."""
    return next((known.remedy for known in _remedies() if known.says in failure), None)
