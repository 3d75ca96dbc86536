"""Budgets of stacks: where they have a meaning, and what is said of the stack's own price."""

from types import SimpleNamespace
from typing import Any

import pytest
from llmd_oke.config import validate
from llmd_oke.planning import plan
from llmd_oke.planning.estimates import costs
from stack_files import created_stack, problems

TO_OPS: dict[str, Any] = {"recipients": ["ops@example.com"]}


def test_a_budget_requires_a_cluster_that_the_stack_creates():
    assert [problem.path for problem in problems(budget={"monthlyAmount": 1, **TO_OPS})] == ["budget.monthlyAmount"]


@pytest.mark.parametrize(("amount", "told"), [(1_000, True), (10_000_000, False)])
def test_check_warns_of_a_stack_that_costs_more_than_its_budget(amount: int, told: bool):
    made = plan(validate(created_stack(budget={"monthlyAmount": amount, **TO_OPS})))
    assert ("budget.monthlyAmount" in [advice.path for advice in made.advice]) == told


@pytest.mark.parametrize(("amount", "told"), [(743_999, True), (744_000, False)])
def test_check_does_not_warn_of_a_stack_that_costs_exactly_its_budget(
    monkeypatch: pytest.MonkeyPatch, amount: int, told: bool
):
    monkeypatch.setattr("llmd_oke.planning.budget.costs", lambda _: SimpleNamespace(usd_per_hour=1_000))
    made = plan(validate(created_stack(budget={"monthlyAmount": amount, **TO_OPS})))
    assert ("budget.monthlyAmount" in [advice.path for advice in made.advice]) == told


def test_the_warning_of_a_budget_states_the_stacks_list_price_in_a_month():
    made = plan(validate(created_stack(budget={"monthlyAmount": 1, **TO_OPS})))
    (told,) = [advice.text for advice in made.advice if advice.path == "budget.monthlyAmount"]
    assert f"costs {costs(made).usd_per_hour * 744:,.0f} US dollars in a month of 31 days" in told


def test_duplicate_budget_alerts_are_refused():
    alerts = [{"percent": 80}, {"percent": 100}, {"percent": 80, "of": "spent"}]
    found = problems(budget={"monthlyAmount": 1, "alerts": alerts, **TO_OPS})
    assert "budget.alerts[2].percent" in [problem.path for problem in found]


def test_percentages_of_budget_alerts_have_at_most_two_decimal_places():
    alerts = [{"percent": 99.55}, {"percent": 99.555}]
    found = problems(budget={"monthlyAmount": 1, "alerts": alerts, **TO_OPS})
    assert "budget.alerts[1].percent" in [problem.path for problem in found]
    assert "budget.alerts[0].percent" not in [problem.path for problem in found]


def test_a_budget_does_not_change_the_configuration_hash():
    with_budget = plan(validate(created_stack(budget={"monthlyAmount": 10_000_000, **TO_OPS})))
    assert with_budget.config_hash == plan(validate(created_stack())).config_hash
