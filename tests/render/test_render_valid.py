"""Every object against the schema of its kind."""

import importlib
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from lightkube.models.apps_v1 import Deployment
from llmd_oke.operators import rdma_network
from llmd_oke.operators.helm_operators import device_config
from llmd_oke.planning.gpu_stack import tolerations
from llmd_oke.values import read_yaml
from render_support import SHARED_DATA, validate_by_definition
from stack_files import known_shape

MODULES = {
    "v1": "core_v1",
    "apps/v1": "apps_v1",
    "networking.k8s.io/v1": "networking_v1",
    "policy/v1": "policy_v1",
    "rbac.authorization.k8s.io/v1": "rbac_v1",
    "scheduling.k8s.io/v1": "scheduling_v1",
    "apiextensions.k8s.io/v1": "apiextensions_v1",
}


def misfits(value: Any, type_: Any, path: str) -> Iterator[str]:
    """Return unknown fields and wrong scalars of a value, by a Kubernetes type as in `lightkube.models`."""
    options = [option for option in typing.get_args(type_) or (type_,) if option is not type(None)]
    origin = typing.get_origin(type_)
    if origin is list:
        for i, part in enumerate(value):
            yield from misfits(part, options[0], f"{path}[{i}]")
    elif origin is dict:
        for key, part in value.items():
            yield from misfits(part, options[1], f"{path}.{key}")
    elif len(options) > 1:
        if all(list(misfits(value, option, path)) for option in options):
            yield path
    elif options[0] is not type_:
        yield from misfits(value, options[0], path)
    elif isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        yield from misfit_fields(value, type_, path)
    elif type_ in {str, int, bool} and type(value) is not type_:
        yield f"{path}: {value!r} is no {type_.__name__}"


def misfit_fields(value: Any, type_: Any, path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{path}: {value!r} is no object"
        return
    known = {name.rstrip("_"): hint for name, hint in typing.get_type_hints(type_).items()}  # `from_` is `from`
    for key, part in value.items():
        if key not in known:
            yield f"{path}.{key}: {type_.__name__} has no such field"
        else:
            yield from misfits(part, known[key], f"{path}.{key}")


def test_built_in_objects_have_the_fields_and_types_of_their_kinds(stack):
    for manifest in stack.manifests():
        if (manifest["apiVersion"] in MODULES) and manifest["kind"] != "CustomResourceDefinition":
            module = importlib.import_module(f"lightkube.models.{MODULES[manifest['apiVersion']]}")
            matches = list(misfits(manifest, getattr(module, manifest["kind"]), manifest["kind"]))
            assert matches == [], manifest["metadata"]["name"]


def test_the_schema_check_of_kubernetes_objects_detects_wrong_fields_and_types():
    wrong = {"spec": {"replica": 1, "template": {"metadata": {"name": 1}}}}
    assert list(misfits(wrong, Deployment, "Deployment")) == [
        "Deployment.spec.replica: DeploymentSpec has no such field",
        "Deployment.spec.template.metadata.name: 1 is no str",
    ]


def test_custom_objects_are_valid_by_their_crds(stack):
    for manifest in stack.manifests():
        group = manifest["apiVersion"].partition("/")[0]
        if not group.startswith("inference.networking"):
            continue
        validate_by_definition(manifest, SHARED_DATA / "crds" / f"{group}_{manifest['kind'].lower()}s.yaml")


def of_operators() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Objects of GPUs' and networks' operators, by their definitions."""
    shape = known_shape()
    yield "amd.com_deviceconfigs", device_config("kube-amd-gpu", None, tolerations(shape.node.taints))
    yield "sriovnetwork.openshift.io_sriovnetworknodepolicies", rdma_network.policy(shape)
    yield "sriovnetwork.openshift.io_sriovnetworks", rdma_network.network(shape)
    yield "sriovnetwork.openshift.io_sriovnetworkpoolconfigs", rdma_network.pool_config([shape])


@pytest.mark.parametrize(("definition", "manifest"), [*of_operators()])
def test_objects_of_operators_are_valid_by_their_crds(definition: str, manifest: Mapping[str, Any]):
    file = SHARED_DATA / "crds" / f"{definition}.yaml"
    validate_by_definition(manifest, file)
    spec = read_yaml(file)["spec"]
    assert (spec["group"], spec["names"]["kind"]) == (manifest["apiVersion"].partition("/")[0], manifest["kind"])


def test_every_custom_object_has_its_crd_in_the_stack(stack):
    kinds = {m["spec"]["names"]["kind"] for m in stack.manifests() if m["kind"] == "CustomResourceDefinition"}
    custom = {m["kind"] for m in stack.manifests() if m["apiVersion"].startswith("inference.networking")}
    assert custom <= kinds
