import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
from golden_stacks import CLUSTER, COMPONENTS, CREATED
from llmd_base.errors import KitError
from llmd_oke.operators.crds import Crds
from llmd_oke.package import components
from llmd_oke.testing import Rendered, declared
from test_render_goldens import COMPONENT

CLASSES = {component.__name__: component for component in components()}


@pytest.mark.parametrize("component", CLASSES)
def test_a_component_registers_the_outputs_that_its_class_declares_and_no_others(
    rendered: Callable[..., Rendered], varied: Callable[..., Rendered], component: str
) -> None:
    stack = varied(**COMPONENTS[component]) if component in COMPONENTS else rendered(CREATED.get(component, CLUSTER))
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
