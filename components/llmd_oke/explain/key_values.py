"""Values of a stack's keys, each with its origin: a stack file, a file that it builds on, a default, the catalogue, or
another key.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from llmd_base.documents import leaves

from llmd_oke import config
from llmd_oke.catalogue.entries import EntryKind, origin
from llmd_oke.catalogue.models import MODELS
from llmd_oke.catalogue.releases import RELEASES
from llmd_oke.config import EffectiveStack
from llmd_oke.config.yaml_files import steps
from llmd_oke.planning import Plan, plan_stack_file
from llmd_oke.planning.model_plan import ModelPlan

Origin: TypeAlias = Literal["stack file", "base", "default", "release", "catalogue", "key"]
"""Origin of a key's value: the stack's own file, a file that it builds on, a default of the kit, the release or a model
of the catalogue, or another key.
"""


@dataclass(frozen=True)
class KeyValue:
    """Value of a stack-file key with its origin. `source` is the file with the value, and `line` the line in it; for a
    value that follows from another key, that key; empty for a default.
    """

    path: str
    value: object
    origin: Origin
    source: str = ""
    line: int | None = None


def written_values(project: Path, stack: str) -> list[KeyValue]:
    """Return the values that are written in the stack file and the files that it builds on, in the order of the merged
    object.

    Raises:
        KitError: a file doesn't exist, or is not YAML.
        InvalidStack: a file that the stack builds on is invalid, or the stack is no object.
    """
    return list(_written(config.effective(project, stack)).values())


def effective_values(project: Path, stack: str) -> list[KeyValue]:
    """Return the values that are written in a stack's files, and those of keys that are left out, as planning takes
    them: defaults, values from release and catalogue, and values that follow from other keys. Keys without effect when
    left out aren't included.

    Raises:
        KitError: a file doesn't exist, or is not YAML.
        InvalidStack: the stack can't be deployed; carries every problem.
    """
    plan = plan_stack_file(project, stack)
    written = _written(config.effective(project, stack))
    known = plan.config.model_dump(mode="json", by_alias=True, exclude_none=True)
    values = dict(written)
    for path, value in leaves(known):
        if not any(path == key or path.startswith((f"{key}.", f"{key}[")) for key in written):
            values[path] = KeyValue(path, value, "default")
    for left_out in _left_out(plan):
        values.setdefault(left_out.path, left_out)
    order = {str(key): index for index, key in enumerate(known)}

    def place(item: KeyValue) -> tuple[int, int]:
        key, index, *_ = (*steps(item.path), 0)
        return order.get(str(key), len(order)), index if isinstance(index, int) else 0

    return sorted(values.values(), key=place)


def _written(stack: EffectiveStack) -> Mapping[str, KeyValue]:
    found: dict[str, KeyValue] = {}
    for path, value in leaves(stack.value):
        place = stack.origin_of(path)
        kind: Origin = "stack file" if place.source.own else "base"
        found[path] = KeyValue(path, value, kind, place.source.name, place.line)
    return found


def _left_out(plan: Plan) -> Iterator[KeyValue]:
    """Yield what planning takes for keys that a stack leaves out; also for keys that it has, which count first."""
    release, own, router = plan.release, _file(RELEASES, plan.config.release), _file(RELEASES, plan.router_release)
    yield KeyValue("gpuStack", plan.gpu_stack.kind, "key", "cluster.mode")
    yield KeyValue("override.vllmImage", release.vllm.image.reference, "release", own)
    yield KeyValue("override.endpointPickerImage", release.endpoint_picker.image.reference, "release", router)
    yield KeyValue("override.routingSidecarImage", release.routing_sidecar.image.reference, "release", router)
    yield KeyValue("override.proxyImage", release.proxy.image.reference, "release", router)
    for index, model in enumerate(plan.models):
        entry = _file(MODELS, model.model.name)
        yield KeyValue(f"models[{index}].name", model.name, "key", f"models[{index}].model")
        if model.routed and model.router.config is None:
            yield KeyValue(f"models[{index}].router.profile", model.profile, "key", f"models[{index}].workload")
        if model.router.mode == "standalone":
            yield KeyValue(f"models[{index}].router.replicas", model.router_replicas, "release", router)
        if model.model.revision is not None and plan.model_cache is not None:
            yield KeyValue(f"storage.prewarm.revisions.{model.model.name}", model.model.revision, "catalogue", entry)
        yield from _engine_values(f"models[{index}]", model, own, entry)


def _engine_values(path: str, model: ModelPlan, release: str, entry: str) -> Iterator[KeyValue]:
    """Yield what servers of a model have where the stack says nothing of it."""
    servers = model.topology.servers()
    for role in model.units[0].roles if model.model.architecture.experts is not None else ():
        if servers[role.role].expert_parallel is None:
            whole = role.parallelism.expert_parallel
            yield KeyValue(f"{path}.topology.{role.role}.expertParallel", whole, "catalogue", entry)
    yield KeyValue(f"{path}.engine.maxModelLen", model.max_model_len, "catalogue", entry)
    yield KeyValue(f"{path}.engine.blockSize", model.block_size, "release", release)


def _file(kind: EntryKind[Any], name: str) -> str:
    """Return the file of a catalogue entry: that of the project, or of the kit's `values/`."""
    own = origin(kind.folder, name)
    return own.file if own else f"values/{kind.folder}/{name}.yaml"
