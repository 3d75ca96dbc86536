"""Names of LoRA adapters: the rules by which a unit's endpoint picker replaces an adapter's name in a request by the
served name of the adapter's revision.

Each revision has a served name of its own. vLLM distinguishes cached prefixes of adapters by name alone
(vllm/v1/core/kv_cache_utils.py), so that another revision under the same name would reuse the prefixes of the old one.
"""

from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke.objects import (
    Manifest,
    OverrideArgs,
    ReleaseRef,
    inputs,
    register_outputs,
    resolve_release,
    when_declared,
)
from llmd_oke.serving.manifests import NAMESPACE_S, declare, object_metadata, timeouts
from llmd_oke.serving.router import POOL_GROUP


class AdapterNamesArgs(TypedDict):
    """Arguments of `AdapterNames`: a unit (servers with a router of their own), and the names of its LoRA adapters."""

    release: ReleaseRef
    """llm-d release of the catalogue."""
    override: NotRequired[OverrideArgs | None]
    """Replacements for parts of the release; none if left out."""
    namespace: pulumi.Input[str]
    """Namespace of the unit's objects."""
    unit: str
    """Name of the unit whose servers load the adapters."""
    adapters: dict[str, str]
    """Served names of the adapters, by the names in requests. At least one."""


class AdapterNames(pulumi.ComponentResource):
    """InferenceModelRewrite by which the endpoint picker of a unit (a model's servers with a router of their own)
    replaces the names of LoRA adapters that clients ask for with the names under which vLLM has loaded them.
    Declare it after the unit and after the model cache, which holds the adapters.
    """

    rewrite: pulumi.Output[str]
    """Name of the InferenceModelRewrite that is declared."""

    def __init__(self, name: str, args: AdapterNamesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:AdapterNames", name, inputs(self, args), opts)
        manifest = model_rewrite(args)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(NAMESPACE_S))
        self.rewrite = when_declared(declare(name, manifest, child), manifest["metadata"]["name"])
        register_outputs(self)


def model_rewrite(args: AdapterNamesArgs) -> Manifest:
    """Return the InferenceModelRewrite of a unit, with one rule for each adapter.

    Raises:
        KitError: the catalogue has no such release.
    """
    release = resolve_release(args["release"], args.get("override"))
    rules: list[dict[str, Any]] = [
        {"matches": [{"model": {"type": "Exact", "value": name}}], "targets": [{"modelRewrite": served}]}
        for name, served in sorted(args["adapters"].items())
    ]
    return {
        "apiVersion": release.router.rewrites,
        "kind": "InferenceModelRewrite",
        "metadata": object_metadata(f"{args['unit']}-adapters", args["namespace"]),
        "spec": {"poolRef": {"group": POOL_GROUP, "name": args["unit"]}, "rules": rules},
    }
