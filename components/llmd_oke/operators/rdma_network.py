"""RDMA for pods: virtual functions of the nodes' ports, by the SR-IOV operator that OKE's add-on brings."""

from typing import NotRequired, TypedDict

import pulumi

from llmd_oke import catalogue
from llmd_oke.catalogue import Shape, operators
from llmd_oke.errors import KitError
from llmd_oke.objects import KubernetesObject, Manifest
from llmd_oke.operators import rdma_manifests
from llmd_oke.operators.definitions import when_established

TIMEOUT = pulumi.CustomTimeouts(create="300s", update="300s", delete="600s")


class RdmaNetworkArgs(TypedDict):
    """What the RDMA network is made of."""

    shapes: list[str]
    """OCI shapes of the nodes, from the catalogue."""
    kubeconfig: NotRequired[pulumi.Input[str]]
    """Text of the kubeconfig that the operator's definitions are looked for with; the environment's if left out."""
    kubeconfig_context: NotRequired[str]
    """Context of the kubeconfig; its current one if left out."""


class RdmaNetwork(pulumi.ComponentResource):
    """One virtual function for each GPU, and a network that pods attach them by.

    The SR-IOV operator must be there: in OKE, the add-on NvidiaNetworkOperator. This waits for its definitions.
    """

    namespace: pulumi.Output[str]
    """Namespace of the operator and of these objects."""
    resources: pulumi.Output[list[str]]
    """What pods ask for, by shape, for example `nvidia.com/sriov-rdma-vf`; known once the network is declared."""
    networks: pulumi.Output[list[str]]
    """Networks that pods attach to, `namespace/name`, by shape."""

    def __init__(self, name: str, args: RdmaNetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:RdmaNetwork", name, None, opts)
        facts, shapes = operators.rdma(), [_shape(shape) for shape in args["shapes"]]
        kubeconfig, context = args.get("kubeconfig"), args.get("kubeconfig_context")
        served = when_established(facts.definitions, facts.definitions_timeout_s, kubeconfig, context, after=self)
        common = self._declare(name, [rdma_manifests.pool_config(shapes), rdma_manifests.ip_pool()], served, [])
        networks = [manifest for shape in shapes for manifest in _of_shape(shape)]
        declared = self._declare(name, _once(networks), served, common)
        self.namespace = served.apply(lambda _: facts.namespace)
        self.resources = _after(declared, [shape.rdma.resource for shape in shapes])
        self.networks = _after(declared, [_network_of(shape) for shape in shapes])
        self.register_outputs(
            {
                "namespace": self.namespace,
                "resources": self.resources,
                "networks": self.networks,
            }
        )

    def _declare(
        self, name: str, manifests: list[Manifest], served: pulumi.Output[bool], needed: list[pulumi.Resource]
    ) -> list[pulumi.Resource]:
        """Custom resources, one by one; each waits for the definitions by way of its namespace."""

        def one(manifest: Manifest) -> pulumi.Resource:
            metadata = manifest["metadata"]
            namespace = served.apply(lambda _: metadata["namespace"])
            return KubernetesObject(
                f"{name}-{manifest['kind'].lower()}-{metadata['name']}",
                {**manifest, "metadata": {**metadata, "namespace": namespace}},
                pulumi.ResourceOptions(parent=self, depends_on=needed, custom_timeouts=TIMEOUT),
            )

        return [one(manifest) for manifest in manifests]


def _of_shape(shape: Shape) -> list[Manifest]:
    return [rdma_manifests.policy(shape), rdma_manifests.network(shape)]


def _once(manifests: list[Manifest]) -> list[Manifest]:
    """Shapes that share a network share its object."""
    return list({(m["kind"], m["metadata"]["name"]): m for m in manifests}.values())


def _network_of(shape: Shape) -> str:
    attachment = shape.rdma.network_attachment
    return f"{attachment.namespace}/{attachment.name}"


def _after(resources: list[pulumi.Resource], values: list[str]) -> pulumi.Output[list[str]]:
    return pulumi.Output.all(*(resource.urn for resource in resources)).apply(lambda _: values)


def _shape(name: str) -> Shape:
    found = catalogue.shape(name)
    if found is None:
        raise KitError(f"The catalogue has no shape {name!r}.", f"Known: {', '.join(catalogue.shape_names())}.")
    return found
