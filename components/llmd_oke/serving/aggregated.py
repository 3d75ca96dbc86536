"""A unit of aggregated servers."""

from typing import TypedDict

import pulumi

from llmd_oke.serving.args import ServersArgs, UnitArgs
from llmd_oke.serving.model_server import model_servers


class AggregatedUnitArgs(UnitArgs, TypedDict):
    """What an aggregated unit needs."""

    servers: ServersArgs
    """Servers that compute prompts and generate tokens."""


class AggregatedUnit(pulumi.ComponentResource):
    """Equal servers of one model, each of which does prefill and decode."""

    deployment: pulumi.Output[str]
    """Name of the Deployment."""

    def __init__(self, name: str, args: AggregatedUnitArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:AggregatedUnit", name, None, opts)
        self.deployment = model_servers(self, name, "aggregated", args, args["servers"])
        self.register_outputs({"deployment": self.deployment})
