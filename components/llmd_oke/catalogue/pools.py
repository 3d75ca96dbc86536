"""Nodes of pools: their images, how they boot, and how long they are drained before they go."""

from functools import cache

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.entries import Kind
from llmd_oke.values import Entry, follows_project, required_entry, values_folder


class AgentPlugins(Entry):
    """Plug-ins of the agent on self-managed instances."""

    enabled: tuple[str, ...]
    disabled: tuple[str, ...]


class Bootstrap(Entry):
    """How often and how long a node tries to join."""

    attempts: int
    pause_s: int
    identity_timeout_s: int


class Packages(Entry):
    """Where OKE's packages come from if the image has none, and how long a node tries to install packages. `codenames`
    are those of Ubuntu's versions.
    """

    repository: str
    codenames: dict[str, str]
    lock_timeout_s: int
    timeout_s: int
    pause_s: int


class Raid(Entry):
    """The file system over the local disks."""

    chunk_kib: int
    mount: str


class CloudInit(Entry):
    """What the nodes of each kind of pool (`gpu`, `cpu`) run at their first boot, in that order."""

    scripts: dict[str, tuple[str, ...]]
    agent_plugins: AgentPlugins
    bootstrap: Bootstrap
    packages: Packages
    raid: Raid
    kube_proxy_mode: str
    metadata_limit_bytes: int


@cache
def cloud_init() -> CloudInit:
    """The one entry."""
    return required_entry("cloud-init", "node", CloudInit)


@cache
def script_template(name: str) -> str:
    """The template of a script."""
    return (values_folder() / "cloud-init" / f"{name}.sh.j2").read_text()


class Image(Entry):
    """An image that Oracle publishes as a file. Its link changes, so that the stack file gives it."""

    name: str
    operating_system: str
    operating_system_version: str
    kernel: str
    gpu_driver: str
    released: str
    shapes: tuple[str, ...]


IMAGES = Kind("images", Image, key="name")


@follows_project
def image(name: str) -> Image | None:
    """The image of that name, or None."""
    return entries.entry(IMAGES, name)


def image_names() -> list[str]:
    """All images of the catalogue."""
    return entries.names(IMAGES.folder)


class Eviction(Entry):
    """Minutes that OKE drains a node of a managed pool; `cycling_grace_minutes` where GPU nodes replace each other."""

    grace_minutes: int
    cycling_grace_minutes: int


@cache
def eviction() -> Eviction:
    """How long nodes are drained before they go."""
    return required_entry("node-pools", "eviction", Eviction)
