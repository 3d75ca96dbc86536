"""Symptoms of a stack's faults, with severity and remedy, and their order."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

MAX_NAMES = 3

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class Severity(IntEnum):
    """Severity of a symptom; lower values are worse."""

    OUTAGE = 0
    """Severity of symptoms by which requests of a model fail."""
    DEGRADED = 1
    """Severity of symptoms by which requests are answered by fewer servers than planned, or slower."""
    RISK = 2
    """Severity of symptoms by which another part of the stack differs from the plan, while requests are answered as
    planned.
    """

    @property
    def word(self) -> str:
        """Name of the severity in lower case, for texts and JSON."""
        return self.name.lower()


@dataclass(frozen=True)
class Symptom:
    """Description of one fault (`what`), with its severity and a remedy: a command, a page or a sentence."""

    severity: Severity
    what: str
    remedy: str


def worst_first(symptoms: Iterable[Symptom]) -> tuple[Symptom, ...]:
    """Return the symptoms without duplicates, sorted by severity."""
    return tuple(sorted(dict.fromkeys(symptoms), key=lambda symptom: symptom.severity))


def grouped(items: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Group items by key; the keys are in the order of their first items."""
    groups: dict[Key, list[Item]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return groups


def some(names: Iterable[str]) -> str:
    """Return the first `MAX_NAMES` names in alphabetical order as text, with the number of further names."""
    known = sorted(names)
    more = len(known) - MAX_NAMES
    return ", ".join(known[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
