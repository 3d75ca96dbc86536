"""Objects of a cluster, declared to Pulumi in Kubernetes' own words.

Each is a resource of its own, so that previews, drift and diffs are for each object.
"""

from collections.abc import Mapping
from typing import Any

import pulumi

from llmd_oke.sdk_modules import plugin_version

Manifest = Mapping[str, Any]
"""An object in Kubernetes' own words; values may be outputs."""


_SECRET_FIELDS = {"Secret": ["data", "stringData"]}
"""Fields that are secret in the state whoever filled them, by kind."""

PART_OF = {"app.kubernetes.io/part-of": "llmd-oke", "app.kubernetes.io/managed-by": "pulumi"}
"""Labels of all that the kit declares in a cluster."""


class KubernetesObject(pulumi.CustomResource):
    """An object by its manifest. It is the same resource that Pulumi's class of its kind would declare.

    The kit's objects come from charts and templates, as manifests; they need no classes for the fields of every kind
    that Kubernetes has, which Pulumi's own take a fifth of a second to load.
    """

    def __init__(self, name: str, manifest: Manifest, opts: pulumi.ResourceOptions) -> None:
        fields = {key: value for key, value in manifest.items() if key != "status"}
        own = pulumi.ResourceOptions(additional_secret_outputs=_SECRET_FIELDS.get(manifest["kind"]))
        kind = type_token(manifest["apiVersion"], manifest["kind"])
        super().__init__(kind, name, fields, pulumi.ResourceOptions.merge(_with_version(opts), own))


class HelmRelease(pulumi.CustomResource):
    """A release that Helm installs and waits for: the same resource that Pulumi's class `helm.v3.Release` declares."""

    status: pulumi.Output[Mapping[str, Any]]
    """What Helm says of it, `namespace` among others; known once it is installed."""

    def __init__(self, name: str, release: Mapping[str, Any], opts: pulumi.ResourceOptions) -> None:
        fields = {**release, "compat": "true", "status": None}
        super().__init__("kubernetes:helm.sh/v3:Release", name, fields, _with_version(opts))


def type_token(api_version: str, kind: str) -> str:
    """Pulumi's name of a kind: `kubernetes:apps/v1:Deployment`. What has no group is of the group `core`."""
    group = api_version if "/" in api_version else f"core/{api_version}"
    return f"kubernetes:{group}:{kind}"


def _with_version(opts: pulumi.ResourceOptions) -> pulumi.ResourceOptions:
    """Pulumi's own classes name the version of their plug-in too."""
    return pulumi.ResourceOptions.merge(pulumi.ResourceOptions(version=plugin_version("pulumi_kubernetes")), opts)


def when_declared(resource: pulumi.Resource, value: str) -> pulumi.Output[str]:
    """A value that is known beforehand, as an output that waits for the resource.

    Unlike the object's own fields it is known in previews too.
    """

    def same(_urn: str) -> str:
        return value

    return resource.urn.apply(same)
