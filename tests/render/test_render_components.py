import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
from created_cluster import cluster_layer
from llmd_base.errors import KitError
from llmd_oke.catalogue.cluster import image_names
from llmd_oke.operators.crds import Crds
from llmd_oke.package import components
from llmd_oke.testing import Rendered, declared
from stack_files import model, stack
from test_render_goldens import COMPONENT, COMPONENTS, CREATED

IMAGE = {"name": image_names()[0], "uri": "https://objectstorage/o/image.oci", "checksum": "md5:" + "a" * 32}
CLUSTER = cluster_layer(
    cluster={
        "network": {"bastionService": {"clientCidrs": ["203.0.113.0/24"]}},
        "addOns": [{"name": "NodeProblemDetector"}],
    },
    pool={"image": {"import": IMAGE}},
    cpuPools=[{"name": "routers", "shape": "VM.Standard.E5.Flex"}],
    storage={"modelCache": {"kind": "file-storage"}},
    gpuStack="helm-operator",
    budget={"monthlyAmount": 1, "recipients": ["ops@example.com"]},
    ociMonitoring={"alarms": {"recipients": ["ops@example.com"]}, "logs": {"pods": True}},
)
STACKS = {
    **CREATED,
    "NodeRepair": {**CLUSTER, "cluster": {**CLUSTER["cluster"], "nodeRepair": "on-request"}},
    "Calico": {**CLUSTER, "networkPolicies": {"engine": "calico"}},
    "NodeFeatureDiscovery": {**CLUSTER, "rdma": "none"},  # an add-on brings it to an RDMA network
}

ADAPTED = stack(
    model(
        "1p-tp1-1d-tp1",
        model="llama-3.1-8b-instruct",
        engine={"adapters": {}},
        adapters=[{"name": "sql", "repository": "acme/llama-sql", "revision": "a" * 40}],
    ),
    nodes=1,
    storage={"modelCache": {"kind": "node-disk"}},
)
STACKS["AdapterNames"] = ADAPTED

CLASSES = {component.__name__: component for component in components()}


@pytest.mark.parametrize("component", CLASSES)
def test_a_component_registers_the_outputs_that_its_class_declares_and_no_others(
    rendered: Callable[..., Rendered], varied: Callable[..., Rendered], component: str
) -> None:
    stack = varied(**COMPONENTS[component]) if component in COMPONENTS else rendered(STACKS.get(component, CLUSTER))
    registered = [resource.outputs.keys() for resource in stack.of_type(f"{COMPONENT}{component}")]
    outputs = {name: type_ for name, type_ in CLASSES[component].__annotations__.items() if not name.startswith("_")}
    certain = {name for name, type_ in outputs.items() if type(None) not in get_args(type_)}
    assert registered, f"no {component} in the stack"
    assert all(certain <= names <= outputs.keys() for names in registered)


@pytest.mark.parametrize("config", ["guide", CLUSTER], ids=["models", "cluster"])
def test_the_pulumi_engine_can_parse_every_timeout_of_a_resource(
    rendered: Callable[..., Rendered], config: Any
) -> None:
    limits = {limit for resource in rendered(config).resources for limit in resource.timeouts.values()}
    assert [limit for limit in limits if not re.fullmatch(r"(\d+[smh])+", limit)] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"release": "llm-d-0.9.0", "relase": "llm-d-0.9.0"}, r"Crds has no argument relase\.\nDid you mean release\?"),
        ({"release": "llm-d-0.9.0", "q": 1}, r"Crds has no argument q\.\nCrdsArgs has those that there are\."),
        ({}, r"Crds lacks release\.\nCrdsArgs says what they are\."),
    ],
)
def test_missing_and_unknown_arguments_of_a_component_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(KitError, match=message):
        declared(lambda: Crds("definitions", arguments))
