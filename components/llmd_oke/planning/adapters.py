"""Checks of LoRA adapters: slots in servers, names, support by release, model and router, and pre-warming."""

from collections.abc import Iterator

from llmd_base.errors import SET, Problem

from llmd_oke import catalogue
from llmd_oke.catalogue.adapters import adapter_facts
from llmd_oke.config import StackConfig
from llmd_oke.planning.plan import Advice, Plan
from llmd_oke.planning.planned_model import PlannedModel
from llmd_oke.planning.releases import router_of, used_release
from llmd_oke.planning.storage import is_prewarmed


def adapter_problems(context: PlannedModel) -> Iterator[Problem]:
    """Yield the problems of one model's adapters and adapter slots."""
    room, path = context.model.engine.adapters, f"{context.path}.engine.adapters"
    if room is None:
        if context.model.adapters:
            why = (
                f"{context.path}.adapters lists adapters, but engine.adapters reserves no room for them, so that"
                " servers would refuse them"
            )
            yield Problem(path, None, "slots and maxRank", why)
        return
    if room.host_slots is not None and room.host_slots < room.slots:
        why = "vLLM also keeps each loaded adapter in host memory, and does not start with fewer host slots than slots"
        yield Problem(f"{path}.hostSlots", room.host_slots, f"at least {room.slots}, as slots", why)
    yield from _support(context, path)
    if not is_prewarmed(context.stack):
        why = "servers read adapters from the model cache, which pre-warming fills"
        yield Problem(path, SET, "nothing, or a storage.modelCache with storage.prewarm", why)


def _support(context: PlannedModel, path: str) -> Iterator[Problem]:
    """Yield a problem if the release, the model or the router doesn't support adapters."""
    release, facts, router = used_release(context.stack), context.facts, context.model.router
    others = [other for name in catalogue.release_names() if (other := catalogue.release(name))]
    if release is not None and not release.vllm.adapters:
        why = f"of vLLM in {release.name} it isn't known that it reads adapters while it runs"
        accepted = " or ".join(other.name for other in others if other.vllm.adapters)
        yield Problem(path, SET, f"nothing, or release {accepted}", why)
    elif release is not None and release.router.rewrites is None:
        router_release = router_of(context.stack)
        why = f"the endpoint picker of {router_release} isn't known to write the names of adapters' revisions"
        accepted = " or ".join(other.name for other in others if other.router.rewrites is not None)
        yield Problem(path, SET, f"nothing, or override.router {accepted}", why)
    if not adapter_facts().takes(facts):
        families = ", ".join(adapter_facts().families)
        why = f"{facts.name} is of {facts.architecture.family}, whose layers aren't known to take adapters on ROCm"
        yield Problem(path, SET, f"nothing, or a model of {families} without experts", why)
    if router.mode == "none":
        why = "no endpoint picker leads a request to the revision of its adapter"
        yield Problem(f"{context.path}.router.mode", "none", "standalone, or no engine.adapters", why)
    elif router.mode == "gateway":
        why = (
            "servers that read adapters while they run also take /v1/load_lora_adapter, which a Gateway's route passes"
            " to whoever asks; the kit's own Envoys refuse it"
        )
        yield Problem(f"{context.path}.router.mode", "gateway", "standalone, or no engine.adapters", why)


def adapter_name_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for each adapter with the name of another model or adapter of the stack: requests select either
    by name only, in their `model`. No adapter has the name of a repository, which contains a slash.
    """
    owners: dict[str, str] = {}
    for i, model in enumerate(config.models):
        owners.setdefault(model.object_name, f"models[{i}]")
    for i, model in enumerate(config.models):
        for j, adapter in enumerate(model.adapters):
            path = f"models[{i}].adapters[{j}]"
            for name in (adapter.name, adapter.served_name):
                if (owner := owners.get(name)) is not None:
                    why = f"{owner} is asked for by {name} already"
                    yield Problem(f"{path}.name", adapter.name, "a name of its own", why)
                    break
            owners |= {adapter.name: path, adapter.served_name: path}


def adapter_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on the memory that adapter slots take, and on adapters that don't fit a server's memory at once."""
    for i, model in enumerate(plan.models):
        room, path = model.engine.adapters, f"models[{i}].engine.adapters"
        if room is None:
            continue
        role = max(model.units[0].roles, key=lambda role: role.memory.adapters_gib / role.parallelism.gpus)
        gib = role.memory.adapters_gib / role.parallelism.gpus
        yield Advice(
            path,
            f"{room.slots} slots of rank {room.max_rank} take {gib:.2g} GiB of each GPU of {role.role} servers, used or"
            " not (computed); what adapters cost in speed is in no forecast",
        )
        if len(model.adapters) > (room.host_slots or room.slots):
            yield Advice(
                path,
                f"{len(model.adapters)} adapters share {room.host_slots or room.slots} places in a server's memory:"
                " others are read from the model cache again when they are asked for (hostSlots)",
            )
