"""A model of the stack file together with its catalogue entry and the shape of its nodes, as checks need them."""

from dataclasses import dataclass

from llmd_base.errors import Problem
from llmd_bench.deployment import Parallelism

from llmd_oke import catalogue
from llmd_oke.catalogue.adapters import slots_gib
from llmd_oke.catalogue.models import key_value_gib, key_value_tokens, state_tokens, weights_gib
from llmd_oke.catalogue.releases import KvCacheSettings
from llmd_oke.catalogue.speculation import ServerDraft
from llmd_oke.config import ModelConfig, Role, StackConfig
from llmd_oke.config.engine import AdapterSlots
from llmd_oke.planning.model_plan import Memory


@dataclass(frozen=True)
class PlannedModel:
    """Model of a stack, with its path in the stack file, its catalogue entry (`facts`), and the shape of the nodes that
    serve it.
    """

    stack: StackConfig
    model: ModelConfig
    path: str
    facts: catalogue.CatalogueModel
    shape: catalogue.Shape

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens of a sequence, at most the model's own maximum; another check reports a larger
        `maxModelLen`.
        """
        return min(self.model.engine.max_model_len or self.facts.max_model_len, self.facts.max_model_len)

    def parallelism(self, role: Role) -> Parallelism:
        """Return the parallelism of a role's servers, spread over whole nodes if a server has more GPUs than a node."""
        servers = self.model.topology.servers()[role]
        return servers.parallelism(expert_parallel=self.facts.expert_parallel, node_gpus=self.shape.gpus)

    def size(self, role: Role) -> int:
        """Return the tensor parallel size of a role's servers, in GPUs."""
        return self.parallelism(role).tensor_parallel_size

    def memory(self, role: Role, spread: Parallelism) -> Memory:
        """Return the memory of one server of a role with the parallelism `spread`, and the adapters and the draft in
        the stack file.
        """
        engine = self.model.engine.of_role(role)
        share, draft = engine.gpu_memory_utilization, self.facts.server_draft(engine.speculation)
        return memory(self.facts, self.shape, spread, share, engine.adapters, draft)

    def size_problem(self, role: Role, accepted: str, why: str) -> Problem:
        """Return a problem about the tensor parallel size of a role, at its key in the stack file. `accepted` and `why`
        are texts of the problem.
        """
        return self.servers_problem(role, "tensorParallelSize", self.size(role), accepted, why)

    def servers_problem(self, role: Role, key: str, value: object, accepted: str, why: str) -> Problem:
        """Return a problem about a key of a role's servers, at that key, or at the whole topology if it is in short
        form. `accepted` and `why` are texts of the problem.
        """
        topology = self.model.topology
        if topology.source_text is not None:
            spread = topology.servers()[role].parallelism()
            why_of_role = f"{role} servers with {spread}: {why}"
            return Problem(f"{self.path}.topology", topology.source_text, f"for {role}: {accepted}", why_of_role)
        return Problem(f"{self.path}.topology.{role}.{key}", value, accepted, why)


def memory(
    model: catalogue.CatalogueModel,
    node: catalogue.NodeHardware,
    parallelism: Parallelism,
    utilization: float,
    adapters: AdapterSlots | None = None,
    draft: ServerDraft | None = None,
) -> Memory:
    """Return the memory of one server with adapter slots and a draft; `utilization` is the share of GPU memory that
    vLLM may use.
    """
    adapters_gib = slots_gib(model, adapters, parallelism)
    draft_gib = draft.gib(parallelism) if draft else 0.0
    further_gib = adapters_gib + draft_gib
    return Memory(
        gpu_gib=node.gpu.memory_gib * parallelism.gpus,
        weights_gib=weights_gib(model, parallelism),
        activation_gib=model.activation_gib_per_gpu * parallelism.gpus,
        key_value_gib=key_value_gib(model, node, parallelism, utilization, further_gib),
        key_value_tokens=key_value_tokens(model, node, parallelism, utilization, further_gib, draft),
        state_tokens=state_tokens(model, parallelism.tensor_parallel_size, draft),
        ranks=parallelism.data_parallel_size,
        adapters_gib=adapters_gib,
        draft_gib=draft_gib,
    )


def kv_cache_settings(release: catalogue.Release, context: PlannedModel) -> KvCacheSettings:
    """Return the KV connector, attention backend and block size of a model's servers."""
    hands_over = context.model.topology.disaggregated
    return release.vllm.kv_cache_settings(context.facts, context.model.engine, hands_over=hands_over)
