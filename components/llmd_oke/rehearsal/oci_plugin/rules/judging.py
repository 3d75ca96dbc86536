"""Puts the rules of all services together."""

from collections.abc import Callable, Mapping
from typing import Final

from llmd_oke.rehearsal.oci_plugin.rules import clusters, identity, machines, network, storage
from llmd_oke.rehearsal.oci_plugin.rules.scenes import Scene

_RULES: Final[Mapping[str, Callable[[Scene], None]]] = {
    **network.RULES,
    **machines.RULES,
    **clusters.RULES,
    **identity.RULES,
    **storage.RULES,
}


def judge(scene: Scene) -> None:
    """Raises ServiceError where OCI would refuse the request."""
    rule = _RULES.get(scene.resource.name)
    if rule is not None:
        rule(scene)
