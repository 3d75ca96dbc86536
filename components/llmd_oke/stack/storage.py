"""From a plan's storage to component arguments."""

import pulumi

from llmd_oke.config import FileStorage, Lustre, NodeDisk, NoModelCache
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.planning.node_scaling import awaited_nodes
from llmd_oke.planning.storage import GIB_PER_GB
from llmd_oke.serving.cache_args import ModelCacheMountArgs
from llmd_oke.serving.model_cache import ModelCache, ModelCacheArgs, mount
from llmd_oke.serving.namespace import ServingNamespace
from llmd_oke.stack.order import after
from llmd_oke.stack.taints import node_taints

NAME = "model-cache"


def declare_model_cache(
    plan: Plan,
    namespace: ServingNamespace,
    source_url: pulumi.Input[str] | None,
    opts: pulumi.ResourceOptions,
    created_handle: pulumi.Input[str] | None = None,
) -> ModelCache | None:
    """The model cache of a plan, or None where servers keep weights in their pods.

    `created_handle` is what the storage driver knows a file system by that this stack or its cluster stack created.
    """
    if isinstance(plan.config.storage.model_cache, NoModelCache):
        return None
    args = model_cache_args(plan, namespace.service_account)
    if source_url is not None and plan.config.storage.prewarm.source == "object-storage":
        args["source_url"] = source_url
    handle = existing_handle(plan) or created_handle
    if handle is not None:
        args["volume_handle"] = handle
    return ModelCache(NAME, args, after(opts, namespace))


def model_cache_args(plan: Plan, service_account: pulumi.Input[str]) -> ModelCacheArgs:
    """The arguments that follow from the plan alone."""
    cache, prewarm = plan.config.storage.model_cache, plan.config.storage.prewarm
    args: ModelCacheArgs = {
        "namespace": plan.namespace,
        "service_account": service_account,
        "kind": cache.kind,
        "shape": plan.pools[0].shape.name,
        "nodes": sum(awaited_nodes(plan).values()),
        "models": sorted({model.model.name for model in plan.models}),
        "volume_name": f"{plan.namespace}-{NAME}",
        "timeout_s": prewarm.timeout_s,
    }
    if taints := node_taints(plan):
        args["node_taints"] = taints
    if isinstance(cache, NodeDisk):
        args["path"] = cache.path
    if isinstance(cache, Lustre):
        args["capacity_gib"] = int(cache.capacity_gb * GIB_PER_GB)
    if prewarm.source != "none":
        args["prewarm"] = {"source": prewarm.source, "connections": prewarm.connections}
        args["revisions"] = dict(prewarm.revisions)
    return args


def model_cache_mount(plan: Plan, model: ModelPlan, claim: pulumi.Input[str]) -> ModelCacheMountArgs:
    """What the servers of a model are told of the cache; `claim` is that of a shared volume."""
    return mount(model_cache_args(plan, ""), model.model.name, claim)


def existing_handle(plan: Plan) -> str | None:
    """What the storage driver knows an existing file system by; None where there is none."""
    cache = plan.config.storage.model_cache
    if isinstance(cache, FileStorage) and cache.existing:
        there = cache.existing
        return f"{there.file_system_id}:{there.mount_target_ip}:{there.export_path}"
    if isinstance(cache, Lustre) and cache.existing:
        return f"{cache.existing.management_ip}@tcp:/{cache.existing.file_system_name}"
    return None
