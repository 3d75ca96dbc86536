"""Edits of a stack file by the tuner: topology, limits and scaling thresholds; comments and the order of keys are kept.

A threshold is the load of each server at which the targets are still met by the forecast, less a reserve.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from llmd_oke import config
from llmd_oke.config import CONFIG_KEY, Topology, yaml_files
from llmd_oke.config.engine import ROLES
from llmd_oke.values import Entry, required_entry

from llmd_tuner.search import Candidate, at_loads
from llmd_tuner.search_inputs import SearchInputs


class ScalingShare(Entry):
    """Content of `values/tuning/scaling.yaml`: the share of a server's highest load at which another server
    is started.
    """

    threshold_share: float


@dataclass(frozen=True)
class Threshold:
    """Key of the stack file's `scaling` with its value, and a comment on the value's origin."""

    key: str
    value: float
    basis: str


@dataclass(frozen=True)
class RoleThresholds:
    """Number of servers of a role (prefill, decode) behind each router, and the scaling thresholds of each server."""

    replicas: int
    thresholds: tuple[Threshold, ...]


@cache
def scaling_share() -> float:
    """Return the share of a server's highest load at which another server is started, from
    `values/tuning/scaling.yaml`.
    """
    return required_entry("tuning", "scaling", ScalingShare).threshold_share


def thresholds(question: SearchInputs, best: Candidate, tag: str) -> Mapping[str, RoleThresholds]:
    """Return the scaling thresholds of a deployment by role, at the highest load that it carries within all targets.

    Prefill servers scale by prompt tokens per second, to which their work is proportional. Servers that generate tokens
    scale by their requests, which are the batch that the target for ITL allows, and by their KV cache, which requests
    longer than the workload's fill sooner. `tag` is the basis of the forecast: calibrated or a bound.
    """
    (full,) = at_loads(question, best, [best.capacity_per_s])
    most = f"at {best.capacity_per_s:.1f} requests/s, the most within {question.targets}"
    *_, servers = Topology.model_validate(best.topology).servers().values()  # those that generate tokens
    carried = full.batch * servers.data_parallel_size
    requests = _threshold("requests", carried, f"{tag}: {carried:.1f} {most}")
    cache = Threshold("kvCacheUsage", scaling_share(), "a KV cache that is full has requests computed anew")
    generating = RoleThresholds(best.decode, (requests, cache))
    if not best.prefill:
        return {"aggregated": generating}
    tokens_per_s = best.capacity_per_s * question.workload.input_tokens / (best.prefill * best.copies)
    prompts = _threshold("promptTokensPerS", tokens_per_s, f"{tag}: {tokens_per_s:.0f} {most}")
    return {"prefill": RoleThresholds(best.prefill, (prompts,)), "decode": generating}


def _threshold(key: str, carried: float, basis: str) -> Threshold:
    """Return the threshold at a share of the load that one server carries, in whole numbers."""
    share = scaling_share()
    return Threshold(key, max(1, math.floor(carried * share)), f"{basis}, times {share:g}")


@dataclass(frozen=True)
class StackFileChange:
    """Change of a model's entry in a stack file. `thresholds` are by role; they are written if the entry has `scaling`,
    or in any case with `add_scaling`.
    """

    topology: str
    copies: int
    max_num_seqs: int
    thresholds: Mapping[str, RoleThresholds] = field(default_factory=dict[str, RoleThresholds])
    add_scaling: bool = False


def apply_change(text: str, model: int, choice: StackFileChange, project: Path = Path()) -> str:
    """Return the text of a stack file with the change applied to its entry `models[model]`. An entry of a file that the
    stack builds on stays as it is, for other stacks; what differs is written into the stack's own under its name.

    Raises:
        KitError: ruamel.yaml is not installed, or a file that the stack builds on can't be read.
    """
    document = yaml_files.load(text)
    stack: Any = cast("Mapping[str, Any]", document)["config"][CONFIG_KEY]
    effective = config.effective_object(config.stack_object(yaml_files.plain(text)), project)
    planned: Mapping[str, Any] = effective.value["models"][model]
    origin = effective.origin_of(f"models[{model}]")
    name: str | int = origin.steps[-1] if origin.source.own else planned.get("name", planned["model"])
    if not origin.source.own:
        if stack.get("models") is None:
            stack["models"] = yaml_files.new_map({})
        stack["models"][name] = yaml_files.new_map({})
    entry = stack["models"][name]
    changes: dict[str, Any] = {"topology": choice.topology}
    if choice.copies != planned.get("copies", 1):
        changes["copies"] = choice.copies
    if planned.get("disaggregatedSet") and choice.topology.startswith("agg-"):
        changes["disaggregatedSet"] = False  # it is of prefill and decode servers
    for key, value in changes.items():
        _put(entry, key, value, after="topology")
    engine = entry.get("engine")
    if engine is None:
        engine = yaml_files.new_map({"maxNumSeqs": choice.max_num_seqs})
        engine.fa.set_flow_style()
        _put(entry, "engine", engine, after="slo")
    else:
        engine["maxNumSeqs"] = choice.max_num_seqs
    if choice.thresholds and (choice.add_scaling or planned.get("scaling") is not None):
        if entry.get("scaling") is None:
            before: Mapping[str, Any] = planned.get("scaling") or {}
            limits = {role: yaml_files.new_map(before[role]) for role in before if role in ROLES}
            _put(entry, "scaling", yaml_files.new_map(limits), after="engine")
        _put_scaling(entry, choice.thresholds, of_base=isinstance(name, str))
    return yaml_files.dump(document, text)


def _put_scaling(entry: Any, thresholds: Mapping[str, RoleThresholds], *, of_base: bool) -> None:
    """Write the thresholds of the roles that there are now; `null` takes away a role of the base.

    Limits stay, as far as they enclose the topology; roles that are new may shrink in proportion, until the smaller of
    them has one server.
    """
    smallest = min(role_thresholds.replicas for role_thresholds in thresholds.values())
    scaling = entry["scaling"]
    for stale in set(ROLES) & scaling.keys() - thresholds.keys():
        del scaling[stale]
        if of_base:
            scaling[stale] = None
    for role, role_thresholds in thresholds.items():
        if scaling.get(role) is None:
            least = round(role_thresholds.replicas / smallest)
            scaling[role] = yaml_files.new_map({"minReplicas": least, "maxReplicas": role_thresholds.replicas})
        limits = scaling[role]
        limits["minReplicas"] = min(limits.get("minReplicas", 1), role_thresholds.replicas)
        limits["maxReplicas"] = max(limits.get("maxReplicas", 1), role_thresholds.replicas)
        for threshold in role_thresholds.thresholds:
            limits[threshold.key] = threshold.value
            if not entry.fa.flow_style():
                limits.fa.set_block_style()
                scaling.fa.set_block_style()
                limits.yaml_add_eol_comment(threshold.basis, threshold.key)


def _put(entry: Any, key: str, value: object, after: str) -> None:
    """Set a value; a new key goes behind another."""
    if key in entry:
        entry[key] = value
        return
    keys = list(cast("Sequence[str]", entry))
    entry.insert(keys.index(after) + 1 if after in keys else len(keys), key, value)
