"""A prefill/decode disaggregated unit."""

from typing import TypedDict

import pulumi

from llmd_oke.serving.args import ServersArgs, UnitArgs
from llmd_oke.serving.model_server import model_servers


class PrefillDecodeUnitArgs(UnitArgs, TypedDict):
    """What a prefill/decode unit needs."""

    prefill: ServersArgs
    """Servers that compute prompts and hand their KV cache over."""
    decode: ServersArgs
    """Servers that generate tokens, each behind a routing sidecar."""


class PrefillDecodeUnit(pulumi.ComponentResource):
    """Prefill and decode servers of one model between which KV cache is handed over."""

    prefill_deployment: pulumi.Output[str]
    """Name of the prefill Deployment."""
    decode_deployment: pulumi.Output[str]
    """Name of the decode Deployment."""

    def __init__(self, name: str, args: PrefillDecodeUnitArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:PrefillDecodeUnit", name, None, opts)
        self.prefill_deployment = model_servers(self, name, "prefill", args, args["prefill"])
        self.decode_deployment = model_servers(self, name, "decode", args, args["decode"])
        self.register_outputs(
            {"prefill_deployment": self.prefill_deployment, "decode_deployment": self.decode_deployment}
        )
