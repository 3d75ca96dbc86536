"""A tuner's answer written into a stack file: only the values change, comments and order stay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from llmd_oke.config import CONFIG_KEY, round_trip
from llmd_oke.tuning.answers.thresholds import RoleThreshold


@dataclass(frozen=True)
class Choice:
    """What a model's entry in a stack file is to say.

    `thresholds` are by role. They go where the entry has `scaling`, or everywhere with `add_scaling`.
    """

    topology: str
    copies: int
    max_num_seqs: int
    thresholds: Mapping[str, RoleThreshold] = field(default_factory=dict[str, RoleThreshold])
    add_scaling: bool = False


def applied(text: str, model: int, choice: Choice) -> str:
    """The text of a stack file with the choice in its entry `models[model]`.

    Raises:
        KitError: ruamel.yaml is not installed, or the file has no such entry.
    """
    document = round_trip.load(text)
    entry = _entry(document, model)
    changes: dict[str, Any] = {"topology": choice.topology}
    if choice.copies != entry.get("copies", 1):
        changes["copies"] = choice.copies
    for key, value in changes.items():
        _put(entry, key, value, after="topology")
    engine = entry.get("engine")
    if engine is None:
        _put(entry, "engine", _flow_map({"maxNumSeqs": choice.max_num_seqs}), after="slo")
    else:
        engine["maxNumSeqs"] = choice.max_num_seqs
    if choice.thresholds and (choice.add_scaling or entry.get("scaling") is not None):
        _put_scaling(entry, choice.thresholds)
    return round_trip.dump(document, text)


def _put_scaling(entry: Any, thresholds: Mapping[str, RoleThreshold]) -> None:
    """Thresholds of the roles that there are now. Limits stay, as far as they enclose the topology; roles that are new
    may shrink in proportion, until the smaller of them has one server.
    """
    smallest = min(found.replicas for found in thresholds.values())
    if entry.get("scaling") is None:
        _put(entry, "scaling", round_trip.new_map({}), after="engine")
    scaling = entry["scaling"]
    for stale in {"prefill", "decode", "aggregated"} & scaling.keys() - thresholds.keys():
        del scaling[stale]
    for role, found in thresholds.items():
        if scaling.get(role) is None:
            least = round(found.replicas / smallest)
            scaling[role] = round_trip.new_map({"minReplicas": least, "maxReplicas": found.replicas})
        limits = scaling[role]
        limits["minReplicas"] = min(limits.get("minReplicas", 1), found.replicas)
        limits["maxReplicas"] = max(limits.get("maxReplicas", 1), found.replicas)
        limits[found.threshold.key] = found.threshold.value
        if not entry.fa.flow_style():
            limits.fa.set_block_style()
            scaling.fa.set_block_style()
            limits.yaml_add_eol_comment(found.threshold.basis, found.threshold.key)


def _put(entry: Any, key: str, value: object, after: str) -> None:
    """Sets a value; a new key goes behind another."""
    if key in entry:
        entry[key] = value
        return
    keys = list(cast("Sequence[str]", entry))
    entry.insert(keys.index(after) + 1 if after in keys else len(keys), key, value)


def _entry(document: Any, model: int) -> Any:
    """The entry of a model."""
    stack = cast("Mapping[str, Any]", document)["config"][CONFIG_KEY]
    return stack["models"][model]


def _flow_map(values: Mapping[str, object]) -> Any:
    made = round_trip.new_map(values)
    made.fa.set_flow_style()
    return made
