"""Checks of a stack's budget: problems where OCI can't have it, and advice if the stack's own list price exceeds it."""

from collections.abc import Iterator

from llmd_base.errors import Problem

from llmd_oke.catalogue.operations import prices
from llmd_oke.config import StackConfig
from llmd_oke.planning.estimates import costs
from llmd_oke.planning.plan import Advice, Plan


def budget_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for a budget in a stack that creates no cluster, for budget alerts that are listed twice, and for
    thresholds that OCI refuses (API reference, CreateAlertRuleDetails).
    """
    budget = config.budget
    if budget is None:
        return
    if config.created_cluster is None:
        why = "only a stack that creates its cluster knows a compartment and the tenancy"
        yield Problem("budget.monthlyAmount", budget.monthly_amount, "nothing, or a cluster of mode create", why)
    for index, alert in enumerate(budget.alerts):
        if alert in budget.alerts[:index]:
            yield Problem(f"budget.alerts[{index}].percent", alert.percent, "each alert once", "it is there already")
        if round(alert.percent, 2) != alert.percent:
            why = "OCI's thresholds have no more"
            yield Problem(f"budget.alerts[{index}].percent", alert.percent, "at most two decimal places", why)


def budget_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice if the list price of a stack exceeds its budget. Prices are in US dollars, the budget may be in
    another currency.
    """
    budget, most_usd = plan.config.budget, costs(plan).usd_per_hour * prices().hours_per_month
    if budget is not None and most_usd > budget.monthly_amount:
        text = f"the stack alone costs {most_usd:,.0f} US dollars in a month of 31 days (list price), more than that"
        yield Advice("budget.monthlyAmount", text)
