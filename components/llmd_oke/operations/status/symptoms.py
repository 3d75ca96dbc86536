"""Symptoms of a stack, the worst first, with what to do about them."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

MAX_NAMES = 3

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class Severity(IntEnum):
    """Severity of a symptom, the worst first."""

    OUTAGE = 0
    """Requests of a model fail."""
    DEGRADED = 1
    """Requests are answered by fewer servers than there should be, or slower."""
    RISK = 2
    """Requests are answered as they should be; something else is not as it was left."""

    @property
    def word(self) -> str:
        """Name of the severity, for people and in data."""
        return self.name.lower()


@dataclass(frozen=True)
class Symptom:
    """One thing that is wrong, and what to do about it: a command, or a sentence."""

    severity: Severity
    what: str
    remedy: str


def worst_first(symptoms: Iterable[Symptom]) -> tuple[Symptom, ...]:
    """Each once, by severity."""
    return tuple(sorted(dict.fromkeys(symptoms), key=lambda symptom: symptom.severity))


def grouped(items: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Items by their keys, in the order in which keys come first."""
    groups: dict[Key, list[Item]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return groups


def some(names: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    known = sorted(names)
    more = len(known) - MAX_NAMES
    return ", ".join(known[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
