"""Budgets of stacks: where they have a meaning, and what is said of the stack's own price."""

from types import SimpleNamespace
from typing import Any

import pytest
from llmd_oke.config import validate
from llmd_oke.planning import Plan, plan
from llmd_oke.planning.estimates import costs
from stack_files import created_stack, paths

TO_OPS: dict[str, Any] = {"recipients": ["ops@example.com"]}


def planned(**budget: Any) -> Plan:
    return plan(validate(created_stack(budget={**TO_OPS, **budget})))


def test_a_budget_requires_a_cluster_that_the_stack_creates():
    assert paths(budget={"monthlyAmount": 1, **TO_OPS}) == ["budget.monthlyAmount"]


@pytest.mark.parametrize(("amount", "told"), [(743_999, True), (744_000, False)])
def test_check_warns_of_a_stack_that_costs_more_than_its_budget(
    monkeypatch: pytest.MonkeyPatch, amount: int, told: bool
):
    monkeypatch.setattr("llmd_oke.planning.budget.costs", lambda _: SimpleNamespace(usd_per_hour=1_000))
    assert ("budget.monthlyAmount" in [advice.path for advice in planned(monthlyAmount=amount).advice]) == told


def test_the_warning_of_a_budget_states_the_stacks_list_price_in_a_month():
    made = planned(monthlyAmount=1)
    (told,) = [advice.text for advice in made.advice if advice.path == "budget.monthlyAmount"]
    assert f"costs {costs(made).usd_per_hour * 744:,.0f} US dollars in a month of 31 days" in told


@pytest.mark.parametrize(
    "alerts",
    [[{"percent": 80}, {"percent": 80, "of": "spent"}], [{"percent": 99.55}, {"percent": 99.555}]],
    ids=["of equal percentages", "of three decimal places"],
)
def test_budget_alerts_of_equal_percentages_or_over_two_decimal_places_are_refused(alerts: list[dict[str, Any]]):
    found = paths(budget={"monthlyAmount": 1, "alerts": alerts, **TO_OPS})
    assert [path for path in found if "alerts" in path] == ["budget.alerts[1].percent"]
