import pulumi
import pytest
from llmd_oke.program.models import taking_over
from stack_files import model, plan

FORMER = {
    "FrontDoor": {("llmd-oke:index:ModelEndpoint", "gpt-endpoint"), ("llmd-oke:index:ModelRoute", "gpt-route")},
    "ModelEndpoint": {("llmd-oke:index:FrontDoor", "gpt-front-door"), ("llmd-oke:index:ModelRoute", "gpt-route")},
    "ModelRoute": {("llmd-oke:index:FrontDoor", "gpt-front-door"), ("llmd-oke:index:ModelEndpoint", "gpt-endpoint")},
}


@pytest.mark.parametrize("component", FORMER)
def test_a_models_service_is_taken_over_from_the_components_that_declared_it(component: str):
    (made,) = plan(model(name="gpt")).models
    aliases = [alias for alias in taking_over(made, component).aliases or () if isinstance(alias, pulumi.Alias)]
    assert {(alias.type_, alias.name) for alias in aliases} == FORMER[component]
