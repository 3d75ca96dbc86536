"""Budget of a stack's compartment: an amount for each month, and who is told when it is spent or will be."""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import ConfigPart, Items, matching

EmailAddress = Annotated[str, matching(r"^[^@\s,;]+@[^@\s,;]+$", "an e-mail address", max_length=254)]


class BudgetAlert(ConfigPart):
    """A threshold of a budget at which mail is sent."""

    percent: Annotated[float, Field(gt=0, le=10_000)]
    """Share of the amount in percent, with at most two decimal places."""

    of: Literal["spent", "forecast"] = "spent"
    """`spent`: what the month has cost so far; `forecast`: what OCI expects it to cost, from its third day with costs
    on.
    """


class BudgetConfig(ConfigPart):
    """A budget of OCI for the cluster's compartment. It tells, and stops nothing; it counts all that costs something
    in the compartment and in those below, also what other stacks have there. OCI allows a compartment one budget, so
    that one of these stacks has it.
    """

    monthly_amount: Annotated[int, Field(ge=1)]
    """Amount for a month, in the currency of the tenancy's rate card."""

    recipients: Annotated[Items[EmailAddress], Field(min_length=1)]
    """Addresses that alerts are sent to."""

    alerts: Annotated[Items[BudgetAlert], Field(min_length=1)] = (
        BudgetAlert(percent=80),
        BudgetAlert(percent=100, of="forecast"),
    )
    """Thresholds; 80 % of the amount spent, and all of it by forecast, if left out."""
