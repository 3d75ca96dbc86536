"""A private registry with copies of everything that a stack pulls, and what is pulled from it instead."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from llmd_oke.catalogue.container_images import ContainerImage, parse_reference

_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


@dataclass(frozen=True)
class MirrorRegistry:
    """A registry with a path in it (`prefix`), and the Secret that pods pull with; None where nodes sign in themselves.

    A copy is named by the prefix and the whole name of what it is a copy of, registry included, as `skopeo sync
    --scoped` names copies. Digests stay.
    """

    prefix: str
    pull_secret: str | None = None

    @property
    def registry(self) -> str:
        """The registry without the path."""
        return self.prefix.partition("/")[0]

    def copy_of(self, image: ContainerImage) -> ContainerImage:
        """The copy of an image or chart. What is in this registry already has no other."""
        if image.registry == self.registry:
            return image
        path = self.prefix.partition("/")[2]
        source = image.registry.lower().replace(":", "-")  # a repository's name has no colon
        repository = "/".join(part for part in (path, source, image.repository) if part)
        return image.model_copy(update={"registry": self.registry, "repository": repository})

    def in_manifest(self, manifest: Any) -> Any:
        """A manifest, or a part of one, with the images of all its pods taken from here, and the Secret that they are
        pulled with. Values that aren't known yet stay what they are.
        """
        if isinstance(manifest, Mapping):
            part = {key: self.in_manifest(value) for key, value in cast("Mapping[str, Any]", manifest).items()}
            return self._pod(part) if isinstance(part.get("containers"), list) else part
        if isinstance(manifest, list):
            return [self.in_manifest(item) for item in cast("list[Any]", manifest)]
        return manifest

    def _pod(self, spec: dict[str, Any]) -> dict[str, Any]:
        changed = {key: [self._container(item) for item in spec[key]] for key in _CONTAINERS if key in spec}
        if self.pull_secret is None:
            return {**spec, **changed}
        secrets: list[dict[str, str]] = spec.get("imagePullSecrets", [])
        own = {"name": self.pull_secret}
        return {**spec, **changed, "imagePullSecrets": secrets if own in secrets else [*secrets, own]}

    def _container(self, container: dict[str, Any]) -> dict[str, Any]:
        return {**container, "image": self.copy_of(parse_reference(container["image"])).pinned}
