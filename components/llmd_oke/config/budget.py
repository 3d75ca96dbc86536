"""Budget of a stack's compartment: a monthly amount, and who gets mail when it is spent or forecast to be."""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import ConfigPart, Items, matching

EmailAddress = Annotated[str, matching(r"^[^@\s,;]+@[^@\s,;]+$", "an e-mail address", max_length=254)]


class BudgetAlert(ConfigPart):
    """Threshold of a budget at which OCI sends mail."""

    percent: Annotated[float, Field(gt=0, le=10_000)]
    """Threshold in percent of the budget's monthly amount, with at most two decimal places."""

    of: Literal["spent", "forecast"] = "spent"
    """`spent`: what the month has cost so far; `forecast`: what OCI expects it to cost, from its third day with costs
    on.
    """


class BudgetConfig(ConfigPart):
    """OCI budget for the cluster's compartment. It sends mail and stops nothing; it counts all costs in the compartment
    and those below it, also the costs of other stacks there. OCI allows one budget for each compartment, so that only
    one of its stacks can have one.
    """

    monthly_amount: Annotated[int, Field(ge=1)]
    """Amount for a month, in the currency of the tenancy's rate card."""

    recipients: Annotated[Items[EmailAddress], Field(min_length=1)]
    """Mail addresses that the budget's alerts are sent to."""

    alerts: Annotated[Items[BudgetAlert], Field(min_length=1)] = (
        BudgetAlert(percent=80),
        BudgetAlert(percent=100, of="forecast"),
    )
    """Thresholds of the budget; if left out, 80 % of the amount as spent and 100 % as forecast."""
