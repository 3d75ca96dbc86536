"""Private registry with copies of all images and charts that a stack pulls, and the replacement of references by those
copies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from llmd_oke.catalogue.container_images import ContainerImage, parse_reference

_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


@dataclass(frozen=True)
class MirrorRegistry:
    """Private registry with a path in it (`prefix`), and the image pull Secret of pods; None if nodes authenticate
    themselves.

    A copy's name is the prefix followed by the full name of the original, registry included, as `skopeo sync --scoped`
    names copies. Digests are equal.
    """

    prefix: str
    pull_secret: str | None = None

    @property
    def registry(self) -> str:
        """Host name of the private registry, without the path."""
        return self.prefix.partition("/")[0]

    def copy_of(self, image: ContainerImage) -> ContainerImage:
        """Return the copy of an image or chart. Images that are already in this registry are returned unchanged."""
        if image.registry == self.registry:
            return image
        path = self.prefix.partition("/")[2]
        source = image.registry.lower().replace(":", "-")  # repository names can't contain colons
        repository = "/".join(part for part in (path, source, image.repository) if part)
        return image.model_copy(update={"registry": self.registry, "repository": repository})

    def in_manifest(self, manifest: Any) -> Any:
        """Return a manifest, or a part of one, with the images of all its pods replaced by their copies in the private
        registry, and with its image pull Secret. Values that Pulumi doesn't know yet are returned unchanged.
        """
        if isinstance(manifest, Mapping):
            part = {key: self.in_manifest(value) for key, value in cast("Mapping[str, Any]", manifest).items()}
            return self._pod(part) if isinstance(part.get("containers"), list) else part
        if isinstance(manifest, list):
            return [self.in_manifest(item) for item in cast("list[Any]", manifest)]
        return manifest

    def _pod(self, spec: dict[str, Any]) -> dict[str, Any]:
        changed = {
            key: [{**item, "image": self.copy_of(parse_reference(item["image"])).pinned} for item in spec[key]]
            for key in _CONTAINERS
            if key in spec
        }
        if self.pull_secret is None:
            return {**spec, **changed}
        secrets: list[dict[str, str]] = spec.get("imagePullSecrets", [])
        own = {"name": self.pull_secret}
        return {**spec, **changed, "imagePullSecrets": secrets if own in secrets else [*secrets, own]}
