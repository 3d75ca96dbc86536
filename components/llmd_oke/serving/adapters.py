"""The names of a unit's LoRA adapters: its endpoint picker writes into each request the name of the revision.

Servers know each revision by a name of its own. vLLM tells cached prefixes of adapters apart by name alone
(vllm/v1/core/kv_cache_utils.py), so that another revision under the same name would go on with what the last one left.
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
    """Arguments of the names of a unit's adapters."""

    release: ReleaseRef
    """llm-d release of the catalogue."""
    override: NotRequired[OverrideArgs | None]
    """Parts of the release that others take the place of; none if left out."""
    namespace: pulumi.Input[str]
    """Namespace of the unit."""
    unit: str
    """Unit whose servers have the adapters."""
    adapters: dict[str, str]
    """Names by which servers know the adapters, by those that requests say. At least one."""


class AdapterNames(pulumi.ComponentResource):
    """The InferenceModelRewrite of a unit. Declare it after the model cache, which has the adapters, and the unit."""

    rewrite: pulumi.Output[str]
    """Name of the InferenceModelRewrite."""

    def __init__(self, name: str, args: AdapterNamesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:AdapterNames", name, inputs(self, args), opts)
        manifest = model_rewrite(args)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(NAMESPACE_S))
        self.rewrite = when_declared(declare(name, manifest, child), manifest["metadata"]["name"])
        register_outputs(self)


def model_rewrite(args: AdapterNamesArgs) -> Manifest:
    """The InferenceModelRewrite: one rule for each adapter.

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
