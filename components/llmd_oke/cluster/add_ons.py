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
    """The add-ons."""


class AddOns(pulumi.ComponentResource):
    """Add-ons of a cluster. They need nodes to run on: declare them after the system pool."""

    names: pulumi.Output[list[str]]
    """Names of the add-ons."""

    def __init__(self, name: str, args: AddOnsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:AddOns", name, None, opts)
        self.names = pulumi.Output.all(*(self._add_on(name, args["cluster_id"], add_on) for add_on in args["add_ons"]))
        self.register_outputs({"names": self.names})

    def _add_on(self, name: str, cluster_id: pulumi.Input[str], args: AddOnArgs) -> pulumi.Output[str]:
        given = args.get("configurations", {})
        settings: Any = [{"key": key, "value": given[key]} for key in sorted(given)]
        made = oci.containerengine.Addon(
            f"{name}-{args['name'].lower()}",
            addon_name=args["name"],
            cluster_id=cluster_id,
            version=args.get("version"),
            configurations=settings or None,
            override_existing=True,
            remove_addon_resources_on_delete=True,
            opts=pulumi.ResourceOptions(parent=self, custom_timeouts=ADD_ON),
        )
        return made.addon_name
