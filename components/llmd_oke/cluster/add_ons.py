"""Add-ons of OKE: software that OKE installs in a cluster and keeps up to date."""

from typing import Any, NotRequired, TypedDict

import pulumi
import pulumi_oci as oci

from llmd_oke.cluster.timeouts import ADD_ON


class AddOnArgs(TypedDict):
    """An add-on that OKE installs and keeps up to date."""

    name: str
    """Its name in OKE's catalogue, such as `NodeProblemDetector`."""
    version: NotRequired[str]
    """Its version; OKE's choice if left out."""
    configurations: NotRequired[dict[str, pulumi.Input[str]]]
    """Its settings: text, or JSON as text."""


class AddOnsArgs(TypedDict):
    """Which add-ons a cluster has beside the essential ones."""

    cluster_id: pulumi.Input[str]
    """OCID of the cluster."""
    add_ons: list[AddOnArgs]
    """The add-ons, in the order in which they are installed: OKE checks for some that others are there."""


class AddOns(pulumi.ComponentResource):
    """Add-ons of a cluster, one after the other. They need nodes to run on: declare them after the system pool.

    Where the cluster goes too (`deleted_with`), they go with it; otherwise they are taken away, the last one first.
    """

    names: pulumi.Output[list[str]]
    """Names of the add-ons."""

    def __init__(self, name: str, args: AddOnsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:AddOns", name, None, opts)
        gone_with = opts.deleted_with if opts else None
        made: list[oci.containerengine.Addon] = []
        for add_on in args["add_ons"]:
            child = pulumi.ResourceOptions(
                parent=self, custom_timeouts=ADD_ON, depends_on=made[-1:], deleted_with=gone_with
            )
            made.append(_add_on(name, args["cluster_id"], add_on, child))
        self.names = pulumi.Output.all(*(each.addon_name for each in made)).apply(list)
        self.register_outputs({"names": self.names})


def _add_on(
    name: str, cluster_id: pulumi.Input[str], args: AddOnArgs, opts: pulumi.ResourceOptions
) -> oci.containerengine.Addon:
    given = args.get("configurations", {})
    settings: Any = [{"key": key, "value": given[key]} for key in sorted(given)]
    return oci.containerengine.Addon(
        f"{name}-{args['name'].lower()}",
        addon_name=args["name"],
        cluster_id=cluster_id,
        version=args.get("version"),
        configurations=settings or None,
        override_existing=True,
        remove_addon_resources_on_delete=True,
        opts=opts,
    )
