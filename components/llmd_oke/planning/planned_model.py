"""A model of a stack as it is planned: with what the catalogue knows of it, and the shape of its nodes."""

from dataclasses import dataclass, replace

from llmd_base.errors import Problem
from llmd_bench.deployment import Parallelism

from llmd_oke import catalogue
from llmd_oke.catalogue.adapters import slots_gib
from llmd_oke.catalogue.models import key_value_gib, key_value_tokens, state_tokens, weights_gib
from llmd_oke.catalogue.releases import KvCacheSettings
from llmd_oke.config import ModelConfig, Role, StackConfig
from llmd_oke.config.engine import AdapterSlots
from llmd_oke.planning.model_plan import Memory


@dataclass(frozen=True)
class PlannedModel:
    """A model of a stack, its path in the stack file, what the catalogue knows of it, and the shape of its nodes."""

    stack: StackConfig
    model: ModelConfig
    path: str
    facts: catalogue.CatalogueModel
    shape: catalogue.Shape

    @property
    def max_model_len(self) -> int:
        """Tokens that one sequence may have; what is asked for above the model's context is a problem of its own."""
        return min(self.model.engine.max_model_len or self.facts.max_model_len, self.facts.max_model_len)

    def parallelism(self, role: Role) -> Parallelism:
        """The spread of a role's servers over their GPUs, and over whole nodes where these are more than a node has."""
        servers = self.model.topology.servers()[role]
        return servers.parallelism(expert_parallel=self.facts.expert_parallel, node_gpus=self.shape.gpus)

    def size(self, role: Role) -> int:
        """The tensor parallel size of a role."""
        return self.parallelism(role).tensor_parallel_size

    def memory(self, role: Role, size: int) -> Memory:
        """The memory of one server of a role with that tensor parallel size."""
        spread = replace(self.parallelism(role), tensor_parallel_size=size, nodes=1)
        engine = self.model.engine.of_role(role)
        return memory(self.facts, self.shape, spread, engine.gpu_memory_utilization, engine.adapters)

    def size_problem(self, role: Role, accepted: str, why: str) -> Problem:
        """A problem with the tensor parallel size of a role, at the place where the stack file has it."""
        return self.servers_problem(role, "tensorParallelSize", self.size(role), accepted, why)

    def servers_problem(self, role: Role, key: str, value: object, accepted: str, why: str) -> Problem:
        """A problem with a key of the servers of a role, at the place where the stack file has it."""
        topology = self.model.topology
        if topology.source_text is not None:
            spread = topology.servers()[role].parallelism(expert_parallel=False)
            why_of_role = f"{role} servers with {spread}: {why}"
            return Problem(f"{self.path}.topology", topology.source_text, f"for {role}: {accepted}", why_of_role)
        return Problem(f"{self.path}.topology.{role}.{key}", value, accepted, why)


def memory(
    model: catalogue.CatalogueModel,
    shape: catalogue.Shape,
    parallelism: Parallelism,
    utilization: float,
    adapters: AdapterSlots | None = None,
) -> Memory:
    """The memory of one server, of which vLLM may take the share `utilization`, with room for adapters."""
    adapters_gib = slots_gib(model, adapters, parallelism)
    return Memory(
        gpu_gib=shape.gpu.memory_gib * parallelism.gpus,
        weights_gib=weights_gib(model, parallelism),
        activation_gib=model.activation_gib_per_gpu * parallelism.gpus,
        key_value_gib=key_value_gib(model, shape, parallelism, utilization, adapters_gib),
        key_value_tokens=key_value_tokens(model, shape, parallelism, utilization, adapters_gib),
        state_tokens=state_tokens(model, parallelism.tensor_parallel_size),
        ranks=parallelism.data_parallel_size,
        adapters_gib=adapters_gib,
    )


def kv_cache_settings(release: catalogue.Release, context: PlannedModel) -> KvCacheSettings:
    """Return the KV cache settings that a model's servers are started with."""
    hands_over = context.model.topology.disaggregated
    return release.vllm.kv_cache_settings(context.facts, context.model.engine, hands_over=hands_over)
