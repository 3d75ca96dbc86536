"""Objects of a cluster by their manifests."""

from operator import attrgetter

import pulumi
import pulumi_kubernetes as k8s
import pytest
from llmd_oke.objects import HelmRelease, KubernetesObject
from llmd_oke.testing import declared

CLASSES = {
    ("v1", "ConfigMap"): "core.v1.ConfigMap",
    ("v1", "Namespace"): "core.v1.Namespace",
    ("v1", "PersistentVolume"): "core.v1.PersistentVolume",
    ("v1", "PersistentVolumeClaim"): "core.v1.PersistentVolumeClaim",
    ("v1", "Secret"): "core.v1.Secret",
    ("v1", "Service"): "core.v1.Service",
    ("v1", "ServiceAccount"): "core.v1.ServiceAccount",
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): "apiextensions.v1.CustomResourceDefinition",
    ("apps/v1", "Deployment"): "apps.v1.Deployment",
    ("batch/v1", "Job"): "batch.v1.Job",
    ("policy/v1", "PodDisruptionBudget"): "policy.v1.PodDisruptionBudget",
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): "rbac.v1.ClusterRole",
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): "rbac.v1.ClusterRoleBinding",
    ("rbac.authorization.k8s.io/v1", "Role"): "rbac.v1.Role",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "rbac.v1.RoleBinding",
    ("scheduling.k8s.io/v1", "PriorityClass"): "scheduling.v1.PriorityClass",
}
"""Pulumi's class of each kind, which is loaded when it is asked for."""


BOUND = {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "one"}}
REQUIRED = {
    "ClusterRoleBinding": BOUND,
    "CustomResourceDefinition": {"spec": {"scope": "Namespaced"}},
    "PriorityClass": {"value": 1},
    "RoleBinding": BOUND,
}


@pytest.mark.parametrize("kind", CLASSES, ids=" ".join)
def test_a_declared_kubernetes_object_equals_pulumis_resource_class_for_its_kind(kind):
    fields = {"metadata": {"name": "one", "labels": {"a": "b"}}, **REQUIRED.get(kind[1], {})}
    manifest = {"apiVersion": kind[0], "kind": kind[1], **fields}
    (ours,) = declared(lambda: KubernetesObject("one", manifest, pulumi.ResourceOptions())).resources
    by_class = {{"roleRef": "role_ref"}.get(key, key): value for key, value in fields.items()}
    (theirs,) = declared(lambda: attrgetter(CLASSES[kind])(k8s)("one", **by_class)).resources
    assert ours == theirs


def test_a_declared_helm_release_equals_pulumis_resource_class():
    fields = {"name": "one", "namespace": "there", "chart": "c", "version": "1.0.0", "timeout": 60, "values": {"a": 1}}
    release = {**fields, "repositoryOpts": {"repo": "https://charts.example.com"}}
    (ours,) = declared(lambda: HelmRelease("one", release, pulumi.ResourceOptions())).resources
    repository = k8s.helm.v3.RepositoryOptsArgs(repo="https://charts.example.com")
    (theirs,) = declared(lambda: k8s.helm.v3.Release("one", **fields, repository_opts=repository)).resources
    assert ours == theirs


def test_a_kubernetes_object_is_declared_without_its_status():
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "one"}, "status": {"phase": "Active"}}
    matches = declared(lambda: KubernetesObject("one", manifest, pulumi.ResourceOptions()))
    assert "status" not in matches.kubernetes("Namespace", "one")
