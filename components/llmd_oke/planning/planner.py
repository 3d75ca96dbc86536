"""From a stack's config to its plan, or to everything that is wrong with it."""

from dataclasses import dataclass, replace
from typing import TypeVar

from llmd_oke import catalogue
from llmd_oke.config import Model, Role, StackConfig
from llmd_oke.errors import Refused
from llmd_oke.planning import checks, rollout
from llmd_oke.planning.advice import advice
from llmd_oke.planning.memory import memory
from llmd_oke.planning.placement import empty_nodes, place, servers, unit_names, virtual_functions
from llmd_oke.planning.plan import ModelPlan, Node, Plan, Pool, RolePlan, UnitPlan, UpdateWay
from llmd_oke.planning.releases import pull_problems, router_profile, used_release
from llmd_oke.planning.rules import Subject, answer_changes, has_kv_connector
from llmd_oke.planning.storage import download_limit_s

Entry = TypeVar("Entry")


def plan(config: StackConfig, *, nodes_pull: bool = False) -> Plan:
    """The plan of a stack. Where real nodes pull its images, those that are gone are problems (`nodes_pull`).

    Raises:
        Refused: the stack can't be deployed; carries every problem that was found.
    """
    if problems := [*checks.problems(config), *(pull_problems(config) if nodes_pull else ())]:
        raise Refused(problems)
    pools = checks.pools(config)
    nodes, _ = place(servers(config, config.models), empty_nodes(pools))
    room = _Room(config, pools, nodes)
    release = _known(used_release(config))
    made = Plan(
        config=config,
        cluster=config.cluster,
        namespace=config.namespace,
        pools=pools,
        rdma=config.rdma == "sriov-vf",
        release=release,
        models=tuple(_model(subject, room, release) for subject in checks.subjects(config).values()),
        nodes=tuple(nodes),
        smoke=config.smoke,
        advice=(),
    )
    return replace(made, advice=advice(made))


@dataclass(frozen=True)
class _Room:
    """What the nodes have beside all servers. Units and roles may roll at the same time, so each has an equal share."""

    config: StackConfig
    pools: tuple[Pool, ...]
    nodes: list[Node]

    def surges(self, role: Role, size: int) -> int:
        """How many further servers of a role are sure to find room: none where nodes come and go."""
        if any(pool.autoscaled for pool in self.pools):
            return 0
        by_gpus = self._surges(sum(node.free_gpus for node in self.nodes), size)
        if not virtual_functions(self.config, role, size):
            return by_gpus
        return min(by_gpus, self._surges(sum(node.free_virtual_functions for node in self.nodes), size))

    def update_way(self, model: Model) -> UpdateWay:
        """How another version of a model comes."""
        if model.router.mode == "none":
            return "rolling"
        if not any(pool.autoscaled for pool in self.pools) and rollout.room_beside(self.nodes):
            return "beside"
        if not model.topology.disaggregated:
            return "rolling"
        return "outage" if model.copies == 1 else "one by one"

    def _surges(self, spare: int, size: int) -> int:
        parts = sum(len(model.topology.servers()) * model.copies for model in self.config.models)
        others = sum(bool(server.gpus % size) for node in self.nodes for server in node.servers)
        mixed_nodes = min(len(self.nodes), 2 * others)  # each of the others may be there twice while it rolls too
        return rollout.sure_room(spare // parts, size, mixed_nodes)


def _model(subject: Subject, room: _Room, release: catalogue.Release) -> ModelPlan:
    model, facts, known = subject.model, subject.facts, release.vllm.block_size
    roles = tuple(_role(role, model, facts, subject.shape, room) for role in model.topology.servers())
    return ModelPlan(
        name=model.object_name,
        model=facts,
        topology=model.topology,
        router=model.router,
        profile=router_profile(model, release.endpoint_picker.dialect),
        workload=model.workload,
        slo=model.slo,
        engine=model.engine,
        max_model_len=model.engine.max_model_len or facts.max_model_len,
        block_size=model.engine.block_size
        or (known.kv_connector if has_kv_connector(model.topology, model.engine) else known.default),
        units=tuple(UnitPlan(name, roles) for name in unit_names(model)),
        update_way=room.update_way(model),
        scaling=model.scaling,
        answer_changes=tuple(answer_changes(subject)),
        min_accuracy=checks.min_accuracy(subject),
    )


def _role(role: Role, model: Model, facts: catalogue.Model, shape: catalogue.Shape, room: _Room) -> RolePlan:
    part = model.topology.servers()[role]
    size = part.tensor_parallel_size
    how = rollout.rollout(part.replicas, room.surges(role, size))
    download_s = download_limit_s(room.config)
    return RolePlan(
        role=role,
        replicas=part.replicas,
        tensor_parallel_size=size,
        memory=memory(facts, shape, size, model.engine.gpu_memory_utilization),
        rollout=how,
        startup_budget_s=facts.startup_budget_s,
        create_timeout_s=rollout.create_timeout_s(facts.startup_budget_s, download_s),
        update_timeout_s=rollout.update_timeout_s(facts.startup_budget_s, model.most_replicas(role), how, download_s),
        virtual_functions=virtual_functions(room.config, role, size),
        scaling=model.scaling.servers().get(role) if model.scaling else None,
    )


def _known(entry: Entry | None) -> Entry:
    assert entry is not None  # noqa: S101 - the checks have looked
    return entry
