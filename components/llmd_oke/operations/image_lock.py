"""Bringing the lock of container images up to what their registries say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from llmd_oke.access.registry import Answers, Refusal, RegistryError, StoredImage
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.config import round_trip

NOT_ASKED = "its registry was not asked"
"""How a reason begins that an answer makes obsolete."""

UNANSWERED = {Refusal.UNREACHABLE, Refusal.BUSY, Refusal.UNSOUND}
"""What says nothing of the image itself."""


@dataclass(frozen=True)
class LockUpdate:
    """The lock's new text, and what stands in the way of trusting it: tags that name another digest than the lock has,
    with both, and images of which nothing could be learnt, with the reason. Both keep what the lock had.
    """

    text: str
    moved: Mapping[str, tuple[str, str]]
    unanswered: Mapping[str, str]


def updated(
    text: str, images: Sequence[ContainerImage], answers: Answers, today: date, *, take_moved: bool = False
) -> LockUpdate:
    """The lock with what registries say.

    Args:
        text: the lock as it is.
        images: all images that the lock must have, sorted; others leave it.
        answers: what registries say of them.
        today: the day on which they were asked.
        take_moved: whether a tag's new digest takes the place of the lock's.
    """
    document = round_trip.load(text)
    entries: Any = document["images"]
    references = [image.reference for image in images]
    for stale in [reference for reference in entries if reference not in references]:
        del entries[stale]
    moved: dict[str, tuple[str, str]] = {}
    unanswered: dict[str, str] = {}
    for i, image in enumerate(images):
        reference, answer = image.reference, answers[image.reference]
        if reference not in entries:
            entries.insert(i, reference, round_trip.new_map({"digest": None, "reason": NOT_ASKED}))
        if isinstance(answer, RegistryError):
            if answer.refusal in UNANSWERED or entries[reference]["digest"] is not None:
                unanswered[reference] = answer.message
            elif entries[reference]["reason"].startswith(NOT_ASKED):
                entries[reference]["reason"] = answer.message
            continue
        known = entries[reference]["digest"]
        if known not in {None, answer.digest} and not take_moved:
            moved[reference] = known, answer.digest
            continue
        _write(entries[reference], answer, f"{image.registry}, {today.isoformat()}")
    return LockUpdate(round_trip.dump(document, text), moved, unanswered)


def _write(entry: Any, answer: StoredImage, source: str) -> None:
    """Writes an answer into an entry. ruamel.yaml has comments before the next entry at this one's last key."""
    comment = entry.ca.items.pop(list(entry)[-1], None)
    if entry["digest"] != answer.digest:
        entry["digest"], entry["source"] = answer.digest, source
    for key in ("reason", "gone"):
        entry.pop(key, None)
    if answer.download_bytes is not None:
        entry["download_bytes"] = answer.download_bytes
    if comment is not None:
        entry.ca.items[list(entry)[-1]] = comment
