"""Types of Kubernetes' objects and of parts of them.

Those of parts have the fields of Kubernetes' API, from the stubs of its Python client, which only a type checker reads
(docs/decisions/0161); at run time they are `dict`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Required, TypedDict

import pulumi


class ObjectMeta(TypedDict, total=False):
    """Metadata of an object in a namespace."""

    name: Required[str]
    """Name of the object."""
    namespace: Required[pulumi.Input[str]]
    """Namespace of the object."""
    labels: Mapping[str, pulumi.Input[str]]
    """Labels by which selectors choose the object."""
    annotations: Mapping[str, pulumi.Input[str]]
    """Settings that controllers, or Pulumi's plug-in, read from the object."""


if TYPE_CHECKING:
    from kubernetes import client

    Affinity = client.V1AffinityDict
    Capabilities = client.V1CapabilitiesDict
    Container = client.V1ContainerDict
    ContainerPort = client.V1ContainerPortDict
    DeploymentStrategy = client.V1DeploymentStrategyDict
    EnvVar = client.V1EnvVarDict
    JobSpec = client.V1JobSpecDict
    LabelSelector = client.V1LabelSelectorDict
    LabelSelectorRequirement = client.V1LabelSelectorRequirementDict
    NetworkPolicyPeer = client.V1NetworkPolicyPeerDict
    NetworkPolicyPort = client.V1NetworkPolicyPortDict
    NodeSelectorTerm = client.V1NodeSelectorTermDict
    Pod = client.V1PodDict
    PodAffinity = client.V1PodAffinityDict
    PodAffinityTerm = client.V1PodAffinityTermDict
    PodAntiAffinity = client.V1PodAntiAffinityDict
    PodMeta = client.V1ObjectMetaDict
    PodSecurityContext = client.V1PodSecurityContextDict
    PodSpec = client.V1PodSpecDict
    PodTemplate = client.V1PodTemplateSpecDict
    PolicyRule = client.V1PolicyRuleDict
    Probe = client.V1ProbeDict
    ResourceRequirements = client.V1ResourceRequirementsDict
    SecretKeySelector = client.V1SecretKeySelectorDict
    SecurityContext = client.V1SecurityContextDict
    ServiceSpec = client.V1ServiceSpecDict
    ServicePort = client.V1ServicePortDict
    Toleration = client.V1TolerationDict
    TopologySpreadConstraint = client.V1TopologySpreadConstraintDict
    Volume = client.V1VolumeDict
    VolumeMount = client.V1VolumeMountDict
else:

    def __getattr__(name: str) -> type:
        if name.startswith("_"):
            raise AttributeError(name)
        return dict
