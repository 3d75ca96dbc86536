"""Custom resource definitions of an llm-d release."""

from typing import Any, TypedDict

import pulumi

from llmd_oke import catalogue
from llmd_oke.catalogue.artifacts import crd_manifests
from llmd_oke.errors import KitError
from llmd_oke.objects import KubernetesObject, Manifest, when_declared

ESTABLISH_TIMEOUT = pulumi.CustomTimeouts(create="120s", update="120s", delete="120s")


TAKE_OVER = {"pulumi.com/patchForce": "true"}
"""Fields that an earlier stack wrote would otherwise be a conflict as soon as another release says something else."""


class CrdsArgs(TypedDict):
    """What the definitions are taken from."""

    release: str
    """llm-d release of the catalogue."""


class Crds(pulumi.ComponentResource):
    """The definitions that the router needs (InferencePool and its kin).

    They stay when the stack is destroyed, because other stacks' objects would go with them. So that they can be taken
    over again, give this component a provider with `upsert_existing_objects`; the release deployed last then decides
    what they say.
    """

    names: pulumi.Output[list[str]]
    """Names of the definitions."""

    def __init__(self, name: str, args: CrdsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Crds", name, None, opts)
        release = catalogue.release(args["release"])
        if release is None:
            known = ", ".join(catalogue.release_names())
            raise KitError(f"The catalogue has no release {args['release']!r}.", f"Known: {known}.")
        self.names = pulumi.Output.all(*(self._declared(name, manifest) for manifest in crd_manifests(release.crds)))
        self.register_outputs({"names": self.names})

    def _declared(self, name: str, manifest: Manifest) -> pulumi.Output[str]:
        definition = KubernetesObject(
            f"{name}-{manifest['spec']['names']['plural']}",
            {**manifest, "metadata": _taken_over(manifest["metadata"])},
            pulumi.ResourceOptions(parent=self, retain_on_delete=True, custom_timeouts=ESTABLISH_TIMEOUT),
        )
        return when_declared(definition, manifest["metadata"]["name"])


def _taken_over(metadata: dict[str, Any]) -> dict[str, Any]:
    return {**metadata, "annotations": {**metadata.get("annotations", {}), **TAKE_OVER}}
