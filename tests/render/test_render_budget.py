"""The budget of a created cluster's compartment, with its alerts."""

from collections.abc import Callable
from typing import Any

import pytest
from created_cluster import cluster_layer
from llmd_oke.testing import Rendered
from stack_files import COMPARTMENT, TENANCY

BUDGET: dict[str, Any] = {
    "monthlyAmount": 400_000,
    "recipients": ["ops@example.com", "finance@example.com"],
    "alerts": [{"percent": 50}, {"percent": 99.5, "of": "forecast"}],
}
BUDGET_TYPE, RULE = "oci:Budget/budget:Budget", "oci:Budget/rule:Rule"

Render = Callable[..., Rendered]


@pytest.fixture
def budgeted(rendered: Render) -> Rendered:
    """A tagged cluster with a budget, outside of its tenancy's home region."""
    tags = {"freeform": {"team": "a"}, "defined": {"Operations": {"CostCenter": "42"}}}
    elsewhere = {"iam": {"homeRegion": "us-phoenix-1", "domainUrl": "https://idcs-0.identity.oraclecloud.com:443"}}
    return rendered(cluster_layer(budget=BUDGET, tags=tags, cluster=elsewhere))


def test_a_budget_in_the_root_compartment_targets_the_clusters_compartment(budgeted: Rendered):
    (budget,) = budgeted.of_type(BUDGET_TYPE)
    assert {key: budget.inputs[key] for key in ("compartmentId", "targets", "targetType", "amount", "resetPeriod")} == {
        "compartmentId": TENANCY,
        "targets": [COMPARTMENT],
        "targetType": "COMPARTMENT",
        "amount": 400_000,
        "resetPeriod": "MONTHLY",
    }
    assert budget.inputs["freeformTags"] == {"llmd-oke/stack": "llmd-oke/test", "team": "a"}
    assert budget.inputs["definedTags"] == {"Operations.CostCenter": "42"}


def test_each_budget_alert_is_a_rule_that_notifies_all_recipients(budgeted: Rendered):
    rules = {rule.name: rule.inputs for rule in budgeted.of_type(RULE)}
    assert {name: (rule["type"], rule["threshold"]) for name, rule in rules.items()} == {
        "budget-spent-50": ("ACTUAL", 50),
        "budget-forecast-99.5": ("FORECAST", 99.5),
    }
    assert {rule["recipients"] for rule in rules.values()} == {"ops@example.com, finance@example.com"}


def test_a_budget_is_created_in_the_tenancys_home_region(budgeted: Rendered):
    providers = {item.urn: item.inputs["region"] for item in budgeted.of_type("pulumi:providers:oci")}
    (budget,) = budgeted.of_type(BUDGET_TYPE)
    assert providers[budget.provider.rpartition("::")[0]] == "us-phoenix-1"


def test_a_stack_without_a_budget_declares_no_budget_resource(rendered: Render):
    assert not rendered(cluster_layer()).of_type(BUDGET_TYPE)
