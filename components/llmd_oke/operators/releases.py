"""An operator's Helm release, in a namespace of its own."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import pulumi

from llmd_oke.catalogue.operators import HelmChart, ImagePlace, Operator
from llmd_oke.objects import PART_OF, HelmRelease, KubernetesObject, when_declared

DELETE_S = 900
"""Helm waits for what it deletes, and charts run clean-up Jobs before and after."""

Toleration = dict[str, str]


def declare_release(
    parent: pulumi.Resource, name: str, operator: Operator, tolerations: list[Toleration]
) -> HelmRelease:
    """Declares the namespace and, in it, the release; Helm waits until all of it is ready.

    The namespace is privileged: operators' pods reach into the node (devices, /sys, kubelet's sockets).
    """
    child = pulumi.ResourceOptions(parent=parent)
    metadata = {
        "name": operator.namespace,
        "labels": {**PART_OF, "pod-security.kubernetes.io/enforce": "privileged"},
    }
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    namespace = KubernetesObject(f"{name}-namespace", manifest, child)
    limits = pulumi.CustomTimeouts(
        create=f"{operator.timeout_s}s", update=f"{operator.timeout_s}s", delete=f"{DELETE_S}s"
    )
    release = {
        "name": operator.release,
        "namespace": when_declared(namespace, operator.namespace),
        "timeout": operator.timeout_s,
        "values": chart_values(operator, tolerations),
        **_source(operator.chart),
    }
    opts = pulumi.ResourceOptions(parent=parent, custom_timeouts=limits, depends_on=[namespace])
    return HelmRelease(f"{name}-release", release, opts)


def namespace_of(release: HelmRelease, operator: Operator) -> pulumi.Output[str]:
    """The namespace of an operator, known once Helm has installed it."""

    def told(status: Mapping[str, Any]) -> str:
        return status.get("namespace") or operator.namespace

    return release.status.apply(told)


def chart_values(operator: Operator, tolerations: list[Toleration]) -> dict[str, Any]:
    """The chart's values with its images, and with these tolerations beside those that the list has already."""
    values = with_images(operator.values, operator.images)
    return with_tolerations(values, [operator.tolerations_at] if operator.tolerations_at else [], tolerations)


def with_images(tree: dict[str, Any], images: Iterable[ImagePlace]) -> dict[str, Any]:
    """A copy of a tree with these images in their places."""
    made = copy.deepcopy(tree)
    for place in images:
        _map_at(made, place.at[:-1])[place.at[-1]] = place.value
    return made


def with_tolerations(
    tree: dict[str, Any], places: list[tuple[str, ...]], tolerations: list[Toleration]
) -> dict[str, Any]:
    """A copy of a tree with tolerations added to the lists at these places; maps on the way are made where missing."""
    made = copy.deepcopy(tree)
    for *path, last in places:
        part = _map_at(made, path)
        part[last] = [*part.get(last, []), *tolerations]
    return made


def _map_at(tree: dict[str, Any], path: Iterable[str]) -> dict[str, Any]:
    """The map at a place; it is made where it is missing."""
    for key in path:
        tree = tree.setdefault(key, {})
    return tree


def _source(chart: HelmChart) -> dict[str, Any]:
    source: dict[str, Any] = {"chart": chart.pinned, "version": chart.version}
    if chart.repository is None:
        return source
    return {**source, "repositoryOpts": {"repo": chart.repository}}
