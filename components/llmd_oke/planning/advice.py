"""Advice on settings that can be deployed but may not pay off. Advice never refuses a stack."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from llmd_base.documents import leaves

from llmd_oke.catalogue.server_settings import ServerSettings
from llmd_oke.catalogue.serving import without_rdma
from llmd_oke.config import FileStorage, NodeDisk, StackConfig
from llmd_oke.config.engine import flag_of, flags_by_word
from llmd_oke.config.model import MAX_COPIES
from llmd_oke.config.shape_problems import closest
from llmd_oke.planning.adapters import adapter_advice
from llmd_oke.planning.budget import budget_advice
from llmd_oke.planning.container_images import registry_advice
from llmd_oke.planning.expert_parallel import all2all_advice
from llmd_oke.planning.front_door import cache_isolation_advice, token_budget_advice
from llmd_oke.planning.gateway import gateway_advice
from llmd_oke.planning.known_faults import met_faults
from llmd_oke.planning.model_plan import ModelPlan
from llmd_oke.planning.model_scaling import scaling_advice
from llmd_oke.planning.monitoring import monitoring_advice
from llmd_oke.planning.network_policies import network_policy_advice
from llmd_oke.planning.oci_monitoring import oci_monitoring_advice
from llmd_oke.planning.placement import place, pods
from llmd_oke.planning.plan import Advice, Plan
from llmd_oke.planning.pools import SELF_MANAGED_LAUNCHES, kernel_faults
from llmd_oke.planning.rdma_adapters import rdma_adapter_advice
from llmd_oke.planning.releases import release_advice, vllm_facts
from llmd_oke.planning.speculation import speculation_advice
from llmd_oke.planning.storage import pod_disk_advice, revision_advice, vocabulary_advice
from llmd_oke.planning.tags import tag_advice

SHORT_PROMPT_TOKENS = 1000
"""Prompt length in tokens below which P/D is advised against. The llm-d guide recommends P/D for long prompts, 10k in
and 1k out rather than 200 and 200; the threshold is ours.
"""

SMALL_MODEL_BILLIONS = 20.0
"""Model size in billions of parameters below which P/D is advised against. The llm-d guide recommends P/D for medium
and large models such as gpt-oss-120b; the threshold is ours.
"""

LONG_PROMPT_TOKENS = 4000
"""Prompt length in tokens from which P/D is advised. In llm-d.ai's blog of 2026-05-22 P/D was ahead by 10 to 38 % with
prompts of 4096 tokens; the threshold is ours.
"""

LARGE_MODEL_BILLIONS = 100.0
"""Model size in billions of parameters above which P/D is advised. The llm-d guide recommends P/D for large models with
sparse experts, gpt-oss-120b among them; the threshold is ours.
"""

SLOW_TOKENS_PER_S_PER_USER = 20.0

FAST_TOKENS_PER_S_PER_USER = 100.0
"""Upper end of the range of output rates in tokens per second and user, from `SLOW_TOKENS_PER_S_PER_USER` on, within
which P/D is better than aggregated servers (llm-d.ai blog of 2026-05-22, gpt-oss-120b on MI300X).
"""

_PLACEHOLDER = re.compile(r"ocid1\..*\.example[0-9]*")


def advice(plan: Plan) -> tuple[Advice, ...]:
    """Return all advice on a plan, in the order of the stack file."""
    return (
        *placeholder_advice(plan.config),
        *release_advice(plan),
        *_created_cluster(plan),
        *_cycling(plan),
        *_kernels(plan),
        *_nodes_by_tag(plan),
        *tag_advice(plan),
        *budget_advice(plan),
        *oci_monitoring_advice(plan),
        *network_policy_advice(plan),
        *_without_rdma(plan),
        *cache_isolation_advice(plan.front_door),
        *token_budget_advice(plan.front_door, plan.models),
        *gateway_advice(plan),
        *monitoring_advice(plan),
        *registry_advice(plan),
        *_cache_of_scaled_nodes(plan),
        *vocabulary_advice(plan),
        *revision_advice(plan),
        *pod_disk_advice(plan),
        *adapter_advice(plan),
        *speculation_advice(plan),
        *_unused(plan),
        *(item for i, model in enumerate(plan.models) for item in _engine(plan, model.settings, f"models[{i}].engine")),
        *(item for i, model in enumerate(plan.models) for item in _known_faults(plan, model, f"models[{i}]")),
        *(item for i, model in enumerate(plan.models) for item in _unknown_arguments(plan, model, f"models[{i}]")),
        *(item for i, model in enumerate(plan.models) for item in _model(plan, model, f"models[{i}]")),
    )


def placeholder_advice(config: StackConfig) -> Iterator[Advice]:
    """Yield advice on OCIDs that are an example's placeholders, in one item with all their paths."""
    values = leaves(config.model_dump(mode="json", by_alias=True))
    paths = [path for path, value in values if isinstance(value, str) and _PLACEHOLDER.fullmatch(value)]
    if paths:
        others = f", as at {' and '.join(paths[1:])}" if paths[1:] else ""
        yield Advice(paths[0], f"the OCID is an example's{others}: a rehearsal takes it, OCI has no such thing")


def _created_cluster(plan: Plan) -> Iterator[Advice]:
    """Yield advice on access to a private API endpoint, which updates need; on nodes without access to package
    repositories (`values/cloud-init`); and on the grant for OCI metrics if no node can use it, because only
    self-managed nodes can enable them.
    """
    cluster = plan.config.created_cluster
    if cluster is None:
        return
    if cluster.api_endpoint.access == "private":
        service = cluster.network.bastion_service
        if cluster.network.bastion and not (service.client_cidrs or service.ocid):
            text = "without them no bastion is made, and `llmd-oke up --tunnel` has no way to the private API endpoint"
            yield Advice("cluster.network.bastionService.clientCidrs", text)
        else:
            way = "update from there, or with `llmd-oke up --tunnel`"
            yield Advice(
                "cluster.apiEndpoint.access", f"a private API endpoint is reached from its VCN only: {way}", "note"
            )
    if not cluster.network.worker_internet:
        nfs = " and nfs-common" if isinstance(plan.config.storage.model_cache, FileStorage) else ""
        text = (
            "nodes reach no package repository: their image must carry OKE's packages of "
            f"{cluster.kubernetes_version}{nfs}, and container images must come from OCI's registry"
        )
        yield Advice("cluster.network.workerInternet", text)
    managed = not any(pool.launch in SELF_MANAGED_LAUNCHES for pool in plan.config.gpu_pools)
    if managed and "oci-metrics" in cluster.iam.grants:
        text = (
            "the grant oci-metrics may have no effect: nodes of OKE node pools can't switch on GPU metrics of the"
            " Oracle Cloud Agent, and whether images come with them on is not published; leave it out, or use"
            " self-managed nodes"
        )
        yield Advice("cluster.iam.grants", text)


def _nodes_by_tag(plan: Plan) -> Iterator[Advice]:
    """Yield advice on restricting which instances join the cluster: without a node tag that a dynamic group of the
    stack checks, every instance of the compartment can join by itself.
    """
    cluster = plan.config.created_cluster
    if cluster is None:
        return
    by_others = not cluster.iam.create or cluster.iam.dynamic_groups.nodes
    if by_others and cluster.iam.node_tag:
        why = "iam.dynamicGroups.nodes is there already" if cluster.iam.create else "iam.create is false"
        text = (
            f"the kit doesn't make the dynamic group of nodes here ({why}): its owner must add this tag and its value"
            " to the group's rule, or the tag restricts nothing"
        )
        yield Advice("cluster.iam.nodeTag", text)
    if by_others or cluster.iam.node_tag:
        return
    if any(pool.launch in SELF_MANAGED_LAUNCHES and pool.pool_id is None for pool in plan.config.gpu_pools):
        text = (
            "every instance of the compartment may join the cluster as a node, and so may its pods where they reach the"
            " metadata service; with the key of a defined tag only this stack's may"
        )
        yield Advice("cluster.iam.nodeTag", text)


def _kernels(plan: Plan) -> Iterator[Advice]:
    """Yield advice on imported images with kernel vulnerabilities that later images don't have."""
    for i, pool in enumerate(plan.created.gpu_pools if plan.created else ()):
        image = pool.image_import
        for fault in kernel_faults(image.name) if image else ():
            text = (
                f"the image has {fault.name}; nodes block {', '.join(fault.modules)}, images of {fault.fixed} are fixed"
            )
            yield Advice(f"gpuPools[{i}].image.import.name", text)


def _cycling(plan: Plan) -> Iterator[Advice]:
    """Yield advice on cycling that may return GPU nodes before their replacements exist."""
    for i, pool in enumerate(plan.created.gpu_pools if plan.created else ()):
        cycling = pool.cycling
        if cycling is not None and cycling.mode == "replace-node" and cycling.shrinks:
            text = (
                f"OKE may return a {pool.shape} before it has another one, which somebody else may get;"
                " replace-boot-volume keeps the machines, maxSurge without maxUnavailable takes another one first"
            )
            yield Advice(f"gpuPools[{i}].cycling.maxUnavailable", text)


def _without_rdma(plan: Plan) -> Iterator[Advice]:
    """Yield advice on the time that KV cache transfer takes without RDMA, forecast from rates measured on
    other hardware.
    """
    known = without_rdma()
    for model in plan.models if not plan.rdma else ():
        if model.topology.disaggregated:
            tokens, fast, slow = model.workload.input_tokens, known.pipelined_gb_per_s, known.emulated_gb_per_s
            gb = tokens * model.model.kv_cache.bytes_per_token / 1e9
            text = (
                f"KV cache goes through host memory: {gb:.2g} GB of a prompt of {tokens} tokens take {gb / fast:.2g} to"
                f" {gb / slow:.2g} s of {model.name}'s time to the first token (forecast by {fast:g} and {slow:g} GB/s"
                f" measured on other GPUs; {known.reported_gb_per_s:g} are reported of MI300X); the smoke benchmark"
                " says the rate"
            )
            yield Advice("rdma", text)


def _cache_of_scaled_nodes(plan: Plan) -> Iterator[Advice]:
    """Yield advice on node-local caches in autoscaled pools, where each new node downloads the weights while
    servers wait.
    """
    if isinstance(plan.config.storage.model_cache, NodeDisk) and any(pool.autoscaled for pool in plan.pools):
        text = (
            "each node that the cluster autoscaler adds downloads the weights before its servers start; a shared cache"
            " (file-storage or lustre) has them there already"
        )
        yield Advice("storage.modelCache.kind", text)


def _unused(plan: Plan) -> Iterator[Advice]:
    """Yield advice on nodes without servers, and on free GPUs on nodes in use if these add up to a node or more."""
    idle = plan.idle_nodes
    if idle:
        price = sum(pool.shape.price_usd_per_hour for node in idle for pool in plan.pools if pool.name == node.pool)
        gpus = sum(node.gpus for node in idle)
        cost = f"{_count(len(idle), 'node')} ({gpus} GPUs, {price:.0f} $/hour at list price) would serve nothing"
        yield Advice("gpuPools", cost + _use_of_idle_nodes(plan))
    used = [node for node in plan.nodes if node.servers]
    free = sum(node.free_gpus for node in used)
    if used and free >= max(node.gpus for node in used):
        short = any(node.free_gpus > node.free_virtual_functions for node in used)
        why = ", some of them because their nodes have no virtual functions left" if short else ""
        yield Advice("gpuPools", f"{free} GPUs stay free on the {_count(len(used), 'node')} in use{why}")


def _use_of_idle_nodes(plan: Plan) -> str:
    for i, model in enumerate(plan.models):
        if model.topology.disaggregated and not plan.rdma:
            continue
        further, idle = further_copies(plan, model)
        if further:
            rest = f", {_count(idle, 'node')} idle" if idle else ""
            return f"; models[{i}].copies of {len(model.units) + further} would fit{rest}"
    return ""


def further_copies(plan: Plan, model: ModelPlan) -> tuple[int, int]:
    """Return how many more copies of a model's units (servers with a router of their own) fit the free GPUs of the
    initial nodes, and how many of those nodes have no servers then.
    """
    at_first = plan.nodes_at_first
    free = sum(node.free_gpus for node in at_first)
    unit = model.units[0]
    servers = [
        pod
        for role in unit.roles
        for index in range(role.most_replicas)
        for pod in pods(unit.name, role.role, index, role.parallelism, role.virtual_functions)
    ]
    for copies in range(min(free // unit.gpus, MAX_COPIES - len(model.units)), 0, -1):
        further = (replace(server, unit=f"{server.unit}-{i}") for i in range(copies) for server in servers)
        nodes, left = place(further, at_first)
        if not left:
            return copies, sum(not node.servers for node in nodes)
    return 0, len(plan.idle_nodes)


def _engine(plan: Plan, started: ServerSettings, path: str) -> Iterator[Advice]:
    """Yield advice on vLLM settings that cost time at startup or in transfers."""
    if (folder := started.env.get("AITER_JIT_DIR")) is not None:
        text = (
            f"AITER takes kernels from {folder} alone, and compiles what the image has prebuilt elsewhere, for minutes"
            " in each new pod (ROCm/aiter, jit/core.py)"
        )
        yield Advice(f"{path}.env.AITER_JIT_DIR", text)
    size, usual = started.block_size, plan.release.vllm.block_size.kv_connector
    if started.kv_cache.kv_connector and size < usual:
        text = (
            f"KV cache is handed over block by block: {usual / size:g} times the descriptors of blocks of {usual}, at"
            " the first contact of two servers and in each transfer (vllm issues 50913, 55157)"
        )
        yield Advice(f"{path}.blockSize", text)


def _known_faults(plan: Plan, model: ModelPlan, path: str) -> Iterator[Advice]:
    """Yield advice on known faults of the release's own vLLM. Other images may have other faults."""
    for limit in way.limits if (way := model.settings.hand_over) else ():
        yield Advice(f"{path}.engine.kvCache.connector", f"{limit.text} ({limit.source})", "limit")
    if (facts := vllm_facts(plan.config)) is not None:
        connected = model.settings.kv_cache.kv_connector
        spreads = [role.parallelism for role in model.units[0].roles]
        gpu = plan.pools[0].shape.gpu
        for met in met_faults(facts, model.model, gpu, model.engine, spreads, kv_connector=connected):
            if met.fault.accepted is None:
                yield Advice(f"{path}.{met.key}", str(met))


def _unknown_arguments(plan: Plan, model: ModelPlan, path: str) -> Iterator[Advice]:
    """Yield advice on arguments of the user's that the release's vLLM isn't known to have, which may be misspelt."""
    if vllm_facts(plan.config) is None:
        return
    for key, part in model.engine.parts().items():
        for i, argument in enumerate(part.extra_args):
            flag = flag_of(argument)
            if flag.startswith("--") and flag not in flags_by_word():
                near = closest(flag, flags_by_word())
                meant = f"; {near} is one" if near else ""
                text = (
                    f"the kit knows of no {flag} in vLLM, which ends at its start where it has no such argument{meant}"
                )
                yield Advice(f"{path}.{key}.extraArgs[{i}]", text)


def _model(plan: Plan, model: ModelPlan, path: str) -> Iterator[Advice]:
    if model.topology.data_parallel and model.routed:
        yield Advice(
            f"{path}.topology",
            "endpoint pickers read the counters of a server's first rank alone (llm-d-router v0.10.0, getLatestMetric);"
            " vLLM spreads requests over its ranks itself",
            "note",
        )
    if model.over_nodes:
        for limit in facts.limits if (facts := plan.release.vllm.over_nodes) else ():
            yield Advice(f"{path}.topology", f"{limit.text} ({limit.source})", "limit")
    if model.disaggregated_set:
        for limit in sets.limits if (sets := plan.release.disaggregated_sets) else ():
            yield Advice(f"{path}.disaggregatedSet", f"{limit.text} ({limit.source})", "limit")
    yield from all2all_advice(model, path)
    yield from rdma_adapter_advice(model, plan.pools[0].shape, path)
    if model.topology.disaggregated:
        yield from _disaggregation(model, path)
    else:
        yield from _aggregation(model, path)
    yield from _capacity(model, path)
    for role in model.units[0].roles:
        if role.replicas == 1 and role.rollout.max_unavailable and len(model.units) == 1:
            spare = f"{_count(role.parallelism.gpus, 'GPU')} for a second one"
            yield Advice(
                f"{path}.topology",
                f"the only {role.role} server is gone while it is updated, because {spare} may not be spare",
            )
    yield from scaling_advice(model, plan.pools[0].shape, path)


def _disaggregation(model: ModelPlan, path: str) -> Iterable[Advice]:
    if model.workload.input_tokens < SHORT_PROMPT_TOKENS:
        yield Advice(
            f"{path}.workload.inputTokens",
            f"prompts of {model.workload.input_tokens} tokens are short for P/D, which pays from about"
            f" {SHORT_PROMPT_TOKENS}; compare with an aggregated topology",
        )
    if model.model.parameters.total_billions < SMALL_MODEL_BILLIONS:
        size = f"{model.model.parameters.total_billions:g} billion parameters"
        yield Advice(f"{path}.topology", f"a model of {size} is small for P/D; compare with an aggregated topology")
    if model.slo and model.slo.itl_ms:
        yield from _extreme_slo(1000 / model.slo.itl_ms, path)


def _aggregation(model: ModelPlan, path: str) -> Iterator[Advice]:
    """Yield advice to use P/D where published results recommend it: large models with sparse experts, long prompts,
    several servers.
    """
    facts, workload = model.model, model.workload
    large = facts.parameters.total_billions > LARGE_MODEL_BILLIONS and facts.architecture.experts is not None
    servers = sum(role.replicas for unit in model.units for role in unit.roles)
    long = workload.input_tokens >= max(LONG_PROMPT_TOKENS, workload.output_tokens)
    if large and long and servers > 1:
        yield Advice(
            f"{path}.topology",
            f"for models of over {LARGE_MODEL_BILLIONS:.0f} billion parameters with sparse experts, and long prompts,"
            " separate prefill and decode servers (P/D) were faster in llm-d's guide and measurements; compare with"
            " `llmd-oke tune rank`",
        )


def _extreme_slo(tokens_per_s_per_user: float, path: str) -> Iterator[Advice]:
    if tokens_per_s_per_user > FAST_TOKENS_PER_S_PER_USER:
        reason = "aggregated servers with a large tensor parallel size are ahead of P/D"
    elif tokens_per_s_per_user < SLOW_TOKENS_PER_S_PER_USER:
        reason = "plain aggregated servers are ahead of P/D"
    else:
        return
    yield Advice(
        f"{path}.slo.itlMs", f"at {tokens_per_s_per_user:.0f} tokens/s per user {reason} (gpt-oss-120b on MI300X)"
    )


def _capacity(model: ModelPlan, path: str) -> Iterator[Advice]:
    tokens = model.workload.input_tokens + model.workload.output_tokens
    for role in model.units[0].roles:
        fit = role.memory.sequences(tokens)
        if role.role != "prefill" and fit < role.settings.max_num_seqs:
            yield Advice(
                f"{path}.engine.maxNumSeqs",
                f"the KV cache of one {role.role} server is sure to hold {_count(fit, 'sequence')} of {tokens} tokens,"
                f" fewer than {role.settings.max_num_seqs}: above that requests may queue",
            )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
