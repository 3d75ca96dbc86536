"""Manifests declared as Pulumi resources one by one, so that previews, drift and diffs are for each object."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from llmd_oke.errors import KitError

Manifest = Mapping[str, Any]
"""An object in Kubernetes' own words; values may be outputs."""

_CLASSES: dict[tuple[str, str], Callable[..., pulumi.CustomResource]] = {
    ("v1", "ConfigMap"): k8s.core.v1.ConfigMap,
    ("v1", "Namespace"): k8s.core.v1.Namespace,
    ("v1", "PersistentVolume"): k8s.core.v1.PersistentVolume,
    ("v1", "PersistentVolumeClaim"): k8s.core.v1.PersistentVolumeClaim,
    ("v1", "Secret"): k8s.core.v1.Secret,
    ("v1", "Service"): k8s.core.v1.Service,
    ("v1", "ServiceAccount"): k8s.core.v1.ServiceAccount,
    ("apps/v1", "Deployment"): k8s.apps.v1.Deployment,
    ("batch/v1", "Job"): k8s.batch.v1.Job,
    ("policy/v1", "PodDisruptionBudget"): k8s.policy.v1.PodDisruptionBudget,
    ("rbac.authorization.k8s.io/v1", "Role"): k8s.rbac.v1.Role,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): k8s.rbac.v1.RoleBinding,
    ("scheduling.k8s.io/v1", "PriorityClass"): k8s.scheduling.v1.PriorityClass,
}

_CUSTOM_GROUPS = ("inference.networking.k8s.io", "inference.networking.x-k8s.io", "keda.sh")


def declare(name: str, manifest: Manifest, opts: pulumi.ResourceOptions) -> pulumi.CustomResource:
    """The resource for a manifest.

    Raises:
        KitError: a kind that serving is not known to need; a chart that begins to render it needs a look first.
    """
    api_version, kind = manifest["apiVersion"], manifest["kind"]
    fields = {key: value for key, value in manifest.items() if key not in {"apiVersion", "kind", "status"}}
    if api_version.split("/")[0] in _CUSTOM_GROUPS:
        return k8s.apiextensions.CustomResource(name, api_version=api_version, kind=kind, opts=opts, **fields)
    if (api_version, kind) not in _CLASSES:
        known = ", ".join(f"{a} {k}" for a, k in _CLASSES)
        raise KitError(f"{api_version} {kind} is no kind that serving declares.", f"Known: {known}.")
    return _CLASSES[api_version, kind](name, opts=opts, **{_snake_case(key): value for key, value in fields.items()})


def when_declared(resource: pulumi.Resource, value: str) -> pulumi.Output[str]:
    """A value that is known beforehand, as an output that waits for the resource.

    Unlike the object's own fields it is known in previews too.
    """

    def same(_urn: str) -> str:
        return value

    return resource.urn.apply(same)


def _snake_case(key: str) -> str:
    """What Pulumi calls a field: `roleRef` is `role_ref`."""
    return re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", key)
