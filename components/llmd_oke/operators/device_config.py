"""The AMD GPU operator's DeviceConfig: what runs on each GPU node."""

from typing import Any

from llmd_oke.catalogue import operators
from llmd_oke.objects import PART_OF
from llmd_oke.operators.releases import Toleration, with_images, with_tolerations

KIND = "DeviceConfig"


def device_config(namespace: Any, selector: dict[str, str] | None, tolerations: list[Toleration]) -> dict[str, Any]:
    """The custom resource: device plug-in, node labeller and metrics exporter; no driver, which the node's image has.

    Args:
        namespace: the operator's; it looks nowhere else.
        selector: labels of GPU nodes; what Node Feature Discovery finds if left out.
        tolerations: of the GPU nodes' taints, for each of the three.
    """
    facts = operators.device_config()
    spec = with_tolerations(with_images(facts.spec, facts.images), list(facts.tolerations_at), tolerations)
    return {
        "apiVersion": facts.api_version,
        "kind": KIND,
        "metadata": {"name": facts.name, "namespace": namespace, "labels": PART_OF},
        "spec": {**spec, "selector": selector or facts.selector},
    }
