"""cert-manager."""

from typing import TypedDict

import pulumi

from llmd_oke.catalogue.operators import operator
from llmd_oke.operators.releases import declare_release, namespace_of


class CertManagerArgs(TypedDict):
    """cert-manager takes nothing: its version and settings come from the catalogue."""


class CertManager(pulumi.ComponentResource):
    """cert-manager, a prerequisite of the AMD GPU operator. Its definitions stay when it goes."""

    namespace: pulumi.Output[str]
    """Namespace that it runs in; known once it is ready."""

    def __init__(self, name: str, args: CertManagerArgs, opts: pulumi.ResourceOptions | None = None) -> None:  # noqa: ARG002
        super().__init__("llmd-oke:index:CertManager", name, None, opts)
        facts = operator("cert-manager")
        release = declare_release(self, name, facts, [])
        self.namespace = namespace_of(release, facts)
        self.register_outputs({"namespace": self.namespace})
