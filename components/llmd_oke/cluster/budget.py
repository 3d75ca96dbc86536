"""Component for an OCI budget with alert rules, in the tenancy's root compartment."""

from typing import NotRequired, TypedDict

import pulumi
import pulumi_oci as oci

from llmd_oke.cluster.provider import TagArgs, foreign_tags, home_provider, tag_args
from llmd_oke.objects import inputs, outputs


class BudgetAlertArgs(TypedDict):
    """Threshold of a budget at which OCI sends mail."""

    percent: float
    """Threshold in percent of the budget's monthly amount, at most 10,000, with at most two decimal places."""
    of: str
    """Cost that is compared with the threshold: `spent` in the month so far, or the month's `forecast`."""


class BudgetArgs(TagArgs):
    """Arguments of an OCI budget."""

    tenancy_id: pulumi.Input[str]
    """OCID of the tenancy, in whose root compartment OCI keeps budgets."""
    compartment_id: pulumi.Input[str]
    """Compartment whose costs are counted, with those below it."""
    monthly_amount: int
    """Budget for a month, in the currency of the tenancy's rate card."""
    recipients: list[str]
    """Mail addresses that alerts are sent to."""
    alerts: list[BudgetAlertArgs]
    """Thresholds at which mail is sent."""
    display_name: NotRequired[str | None]
    """Name of the budget; the component's name if left out."""
    region: NotRequired[str | None]
    """Region of the cluster. If equal to `home_region`, the component declares no provider of its own."""
    home_region: NotRequired[pulumi.Input[str] | None]
    """The tenancy's home region, in which the budget is created; looked up in OCI if left out."""
    provider_is_home: NotRequired[bool | None]
    """Whether this component's own provider is for the home region already; false if left out."""
    ignored_tags: NotRequired[list[str] | None]
    """Defined tags, as `Namespace.Key`, that other programs set and updates don't change; for the provider of the home
    region."""


class Budget(pulumi.ComponentResource):
    """OCI budget for a compartment that starts anew each month, with alerts by mail. OCI stops nothing when the budget
    is spent, compares costs with the thresholds every 24 hours, and forecasts after three days with costs (OCI
    documentation, Budgets Overview and Creating a Budget Alert Rule). A compartment has at most one budget.
    """

    budget_id: pulumi.Output[str]
    """OCID of the budget."""

    def __init__(self, name: str, args: BudgetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Budget", name, inputs(self, args), opts)
        provider = home_provider(self, name, args)
        child = pulumi.ResourceOptions(parent=self, provider=provider, ignore_changes=foreign_tags(args))
        label, tags = args.get("display_name") or name, tag_args(args)
        budget = oci.budget.Budget(
            f"{name}-budget",
            compartment_id=args["tenancy_id"],
            display_name=label,
            amount=args["monthly_amount"],
            reset_period="MONTHLY",
            target_type="COMPARTMENT",
            targets=[args["compartment_id"]],
            **tags,
            opts=child,
        )
        for alert in args["alerts"]:
            percent = f"{alert['percent']:g}"
            oci.budget.Rule(
                f"{name}-{alert['of']}-{percent}",
                budget_id=budget.id,
                display_name=f"{label}-{alert['of']}-{percent.replace('.', '_')}",
                type="FORECAST" if alert["of"] == "forecast" else "ACTUAL",
                threshold=alert["percent"],
                threshold_type="PERCENTAGE",
                recipients=", ".join(args["recipients"]),
                message=f"{label}: {percent} % of {args['monthly_amount']:,} ({alert['of']})",
                **tags,
                opts=child,
            )
        self.budget_id = budget.id
        self.register_outputs(outputs(self))
