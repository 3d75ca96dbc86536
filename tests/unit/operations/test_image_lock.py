"""The lock of container images, after its registries were asked."""

from datetime import date

from llmd_oke.access.registry import Answers, Refusal, RegistryError, StoredImage
from llmd_oke.catalogue.container_images import ContainerImage, parsed
from llmd_oke.operations.image_lock import LockUpdate, updated

ONE, TWO, THREE = (f"sha256:{digit * 64}" for digit in "123")
A, B = "ghcr.io/llm-d/a:v1", "ghcr.io/llm-d/b:v1"
LOCK = f"""\
# What this file is.
images:
  {A}:
    digest: null
    reason: its registry was not asked
  # B is special.
  {B}:
    digest: {TWO}
    source: a published comparison
"""
TODAY = date(2026, 11, 21)


def images(*references: str) -> list[ContainerImage]:
    return [parsed(reference) for reference in references]


def after(answers: Answers, *references: str, take_moved: bool = False) -> LockUpdate:
    return updated(LOCK, images(*(references or (A, B))), answers, TODAY, take_moved=take_moved)


def test_a_digest_takes_the_place_of_its_reason_and_comments_stay():
    found = after({A: StoredImage(ONE, 1234), B: StoredImage(TWO)})
    assert (
        found.text
        == f"""\
# What this file is.
images:
  {A}:
    digest: {ONE}
    source: ghcr.io, 2026-11-21
    download_bytes: 1234
  # B is special.
  {B}:
    digest: {TWO}
    source: a published comparison
"""
    )
    assert not found.moved
    assert not found.unanswered


def test_a_tag_that_moved_is_told_and_taken_only_where_that_is_asked_for():
    answers = {A: StoredImage(ONE), B: StoredImage(THREE)}
    kept = after(answers)
    assert kept.moved == {B: (TWO, THREE)}
    assert f"digest: {TWO}" in kept.text
    taken = after(answers, take_moved=True)
    assert not taken.moved
    assert f"digest: {THREE}\n    source: ghcr.io, 2026-11-21" in taken.text


def test_an_image_that_is_there_again_is_not_gone_any_more():
    lock = LOCK.replace("its registry was not asked", "the package was removed\n    gone: true")
    found = updated(lock, images(A, B), {A: StoredImage(ONE), B: StoredImage(TWO)}, TODAY)
    assert f"  {A}:\n    digest: {ONE}\n    source: ghcr.io, 2026-11-21\n  # B is special." in found.text


def test_a_registry_without_an_answer_changes_nothing():
    gone = RegistryError(Refusal.UNREACHABLE, "ghcr.io does not answer.")
    found = after({A: gone, B: gone})
    assert found.text == LOCK
    assert found.unanswered == {A: gone.message, B: gone.message}


def test_an_image_that_is_not_there_gets_that_for_its_reason():
    found = after({A: RegistryError(Refusal.NOT_FOUND, "ghcr.io has no llm-d/a:v1."), B: StoredImage(TWO)})
    assert "digest: null\n    reason: ghcr.io has no llm-d/a:v1." in found.text
    assert not found.unanswered


def test_a_digest_is_never_given_up_for_a_refusal():
    found = after({A: StoredImage(ONE), B: RegistryError(Refusal.DENIED, "private, or gone")})
    assert f"digest: {TWO}" in found.text
    assert found.unanswered == {B: "private, or gone"}


def test_the_lock_gets_new_images_in_their_place_and_loses_others():
    new = "ghcr.io/llm-d/aa:v1"
    found = after({A: StoredImage(ONE), new: StoredImage(THREE)}, A, new)
    assert found.text.index(A) < found.text.index(new)
    assert f"  {new}:\n    digest: {THREE}\n    source: ghcr.io, 2026-11-21\n" in found.text
    assert B not in found.text


def test_asking_twice_changes_nothing_the_second_time():
    answers = {A: RegistryError(Refusal.NOT_FOUND, "ghcr.io has no llm-d/a:v1."), B: StoredImage(TWO, 7)}
    once = after(answers).text
    assert updated(once, images(A, B), answers, date(2027, 1, 1)).text == once
