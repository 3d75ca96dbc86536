"""Whether servers that come and go with the load have room, and stay in a sensible proportion."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmd_oke.catalogue.scaling import scaling
from llmd_oke.config import Model, Role, ServersScaling, StackConfig
from llmd_oke.config.topology import SHORT_FORMS
from llmd_oke.errors import Problem
from llmd_oke.planning.placement import place, servers
from llmd_oke.planning.plan import Advice, ModelPlan, Node


def scaling_problems(model: Model, path: str) -> Iterator[Problem]:
    """What is wrong with the limits and thresholds of one model."""
    scaled = model.scaling.servers() if model.scaling else {}
    if model.scaling and not scaled:
        yield Problem(f"{path}.scaling", None, " or ".join(model.topology.servers()), "it names no role to scale")
    for role, limits in scaled.items():
        yield from _role(model, role, limits, f"{path}.scaling.{role}")


def _role(model: Model, role: Role, limits: ServersScaling, path: str) -> Iterator[Problem]:
    part = model.topology.servers().get(role)
    if part is None:
        accepted = f"{', '.join(model.topology.servers())}, or a topology with {role} servers: {SHORT_FORMS}"
        yield Problem(path, None, accepted, f"{model.topology} has no {role} servers")
        return
    if limits.min_replicas > part.replicas:
        why = f"the topology starts with {part.replicas} {role} servers"
        yield Problem(f"{path}.minReplicas", limits.min_replicas, f"at most {part.replicas}", why)
    if limits.max_replicas < part.replicas:
        why = f"the topology starts with {part.replicas} {role} servers"
        yield Problem(f"{path}.maxReplicas", limits.max_replicas, f"at least {part.replicas}", why)
    if not limits.thresholds():
        fields = (name for name in type(limits).model_fields if name not in {"min_replicas", "max_replicas"})
        names = ", ".join(type(limits).model_fields[name].alias or name for name in fields)
        yield Problem(path, None, f"at least one of {names}", "no threshold says when a server is added")


def room_problems(config: StackConfig, models: Sequence[Model], nodes: Sequence[Node]) -> Iterator[Problem]:
    """Where the nodes have room for what the models start with but not for the most that they may have.

    Each role that could be smaller is named, with the most that fits beside all others at their most.
    """
    if not _fits(config, [model.model_copy(update={"scaling": None}) for model in models], nodes):
        return
    for model in models:
        for role, limits in (model.scaling.servers() if model.scaling else {}).items():
            if role in model.topology.servers():
                yield from _too_many(_Subject(config, models, nodes, model, role), limits)


@dataclass(frozen=True)
class _Subject:
    """A role of a model among all models of a stack."""

    config: StackConfig
    models: Sequence[Model]
    nodes: Sequence[Node]
    model: Model
    role: Role

    def fits(self, replicas: int) -> bool:
        """Whether that many servers of the role have room."""
        return _fits(self.config, [self._with(replicas) if m is self.model else m for m in self.models], self.nodes)

    def _with(self, replicas: int) -> Model:
        assert self.model.scaling  # noqa: S101 - only scaled roles are asked for
        limits = self.model.scaling.servers()[self.role].model_copy(update={"max_replicas": replicas})
        return self.model.model_copy(update={"scaling": self.model.scaling.model_copy(update={self.role: limits})})


def _too_many(subject: _Subject, limits: ServersScaling) -> Iterator[Problem]:
    start = subject.model.topology.servers()[subject.role].replicas
    counts = range(limits.max_replicas - 1, start - 1, -1)
    if not counts:
        return
    enough = next((count for count in counts if subject.fits(count)), None)
    index = next(i for i, model in enumerate(subject.config.models) if model is subject.model)
    fewer = "fewer, with fewer of the other servers that are scaled too" if enough is None else f"at most {enough}"
    gpus = sum(server.gpus for server in servers(subject.config, subject.models))
    have = sum(node.gpus for node in subject.nodes)
    yield Problem(
        f"models[{index}].scaling.{subject.role}.maxReplicas",
        limits.max_replicas,
        f"{fewer}, or more nodes in gpuPools",
        f"all models at their most need {gpus} GPUs in whole servers, and the pools' {len(subject.nodes)} nodes"
        f" have {have}",
    )


def _fits(config: StackConfig, models: Sequence[Model], nodes: Sequence[Node]) -> bool:
    return not place(servers(config, models), nodes)[1]


def scaling_advice(model: ModelPlan, path: str) -> Iterator[Advice]:
    """What can be scaled but may not pay."""
    if model.scaling is None:
        return
    yield from _one_of_two(model, path)
    yield from _proportions(model, path)
    for role, limits in model.scaling.servers().items():
        if role != "prefill" and (limits.requests or 0) > model.engine.max_num_seqs:
            yield Advice(
                f"{path}.scaling.{role}.requests",
                f"servers are added only once requests wait: one server runs {model.engine.max_num_seqs} at a time"
                " (engine.maxNumSeqs)",
            )


def _one_of_two(model: ModelPlan, path: str) -> Iterator[Advice]:
    scaled = list(model.scaling.servers()) if model.scaling else []
    if model.topology.disaggregated and len(scaled) == 1:
        (role,) = scaled
        other = "decode" if role == "prefill" else "prefill"
        yield Advice(
            f"{path}.scaling", f"only {role} servers are scaled: where {other} servers are too few, more don't help"
        )


def _proportions(model: ModelPlan, path: str) -> Iterator[Advice]:
    """Prefill for each decode server at the least and at the most, against what the topology has."""
    prefill, decode = model.units[0].role("prefill"), model.units[0].role("decode")
    if not (prefill and prefill.scaling and decode and decode.scaling):
        return
    planned = prefill.replicas / decode.replicas
    ends = {
        "minReplicas": (prefill.scaling.min_replicas, decode.scaling.min_replicas),
        "maxReplicas": (prefill.scaling.max_replicas, decode.scaling.max_replicas),
    }
    for key, (of_prefill, of_decode) in ends.items():
        factor = of_prefill / of_decode / planned
        if max(factor, 1 / factor) > scaling().ratio_factor:
            yield Advice(
                f"{path}.scaling",
                f"{key} has {of_prefill} prefill for {of_decode} decode servers where {model.topology} has"
                f" {prefill.replicas} for {decode.replicas}; one role would wait for the other",
            )
