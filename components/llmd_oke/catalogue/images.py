"""Images of nodes: operating system, driver, and the shapes that they are made for."""

from functools import cache

from llmd_oke.catalogue.files import Entry, entry, names


class Image(Entry):
    """An image that Oracle publishes as a file. Its link changes, so that the stack file gives it."""

    name: str
    operating_system: str
    operating_system_version: str
    kernel: str
    gpu_driver: str
    released: str
    shapes: tuple[str, ...]


@cache
def image(name: str) -> Image | None:
    """The image of that name, or None."""
    return entry("images", name, Image)


def image_names() -> list[str]:
    """All images of the catalogue."""
    return names("images")
