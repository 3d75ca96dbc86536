"""Servers that a search chooses from: all that planning takes, and nothing that it refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmd_base.errors import InvalidStack
from llmd_bench.deployment import Parallelism, aggregated_short_form, disaggregated_short_form
from llmd_oke import catalogue, planning
from llmd_oke.config import Topology
from llmd_oke.planning.server_choices import ServerChoices, accepted_servers, divided_spreads, possible_servers
from stack_files import StackObject, existing_pool, known_model, known_release, known_shape, model, stack

SHAPE = known_shape()
MIXTURES = ("gpt-oss-120b", "deepseek-v3", "qwen3-235b-a22b-fp8")
NODES = 4


def document(name: str, topology: object, **changes: object) -> StackObject:
    return stack(model(topology, model=name, **changes), gpuPools=[existing_pool(size=NODES)])


def choices(name: str, topology: object = "agg-tp8ep-1r", gpus: int = 8 * NODES, **changes: object) -> ServerChoices:
    return accepted_servers(planning.plan_object(document(name, topology, **changes)), 0, gpus)


def taken(name: str, topology: str, **changes: object) -> bool:
    try:
        planning.plan_object(document(name, topology, **changes))
    except InvalidStack:
        return False
    return True


@pytest.fixture(scope="module")
def by_model() -> dict[str, ServerChoices]:
    dense = "llama-3.3-70b-instruct-fp8-dynamic"
    return {**{name: choices(name) for name in MIXTURES}, dense: choices(dense, "agg-tp8-1r")}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_server_pair_that_planning_offers_to_the_tuner_can_be_planned(
    by_model: dict[str, ServerChoices], data: st.DataObject
):
    name = data.draw(st.sampled_from(sorted(by_model)))
    prefill, decode = data.draw(st.sampled_from(by_model[name].disaggregated))
    (planned,) = planning.plan_object(document(name, disaggregated_short_form(1, prefill, 1, decode))).models
    roles = {role.role: role for role in planned.units[0].roles}
    assert [roles["prefill"].parallelism.nodes, roles["decode"].parallelism.nodes] == [prefill.nodes, decode.nodes]
    assert [roles["prefill"].gpus, roles["decode"].gpus] == [prefill.gpus, decode.gpus]
    for role, spread in (("prefill", prefill), ("decode", decode)):
        assert roles[role].memory == by_model[name].memory[role][spread]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_stack_is_accepted_exactly_with_server_pairs_that_the_tuner_is_offered(
    by_model: dict[str, ServerChoices], data: st.DataObject
):
    name = data.draw(st.sampled_from(sorted(by_model)))
    spreads = list(divided_spreads(known_model(name), 8, 8 * NODES))
    pair = data.draw(st.sampled_from([(first, second) for first in spreads for second in spreads]))
    topology = disaggregated_short_form(1, pair[0], 1, pair[1])
    assert (pair in by_model[name].disaggregated) == taken(name, topology)


def test_each_parallelism_offered_to_the_tuner_has_a_unique_parsable_short_form():
    """Data parallelism is offered for models with experts alone."""
    for name in catalogue.model_names():
        spreads, experts = list(divided_spreads(known_model(name), 8, 32)), known_model(name).architecture.experts
        assert len({spread.kind for spread in spreads}) == len(spreads), name
        for spread in spreads:
            (servers,) = Topology.model_validate(aggregated_short_form(spread, 1)).servers().values()
            assert servers.parallelism(expert_parallel=spread.expert_parallel, node_gpus=8) == spread, name
        assert all(spread.tensor_parallel_size <= 8 and spread.gpus_per_node <= 8 for spread in spreads), name
        assert (experts is not None) == any(spread.data_parallel_size > 1 for spread in spreads), name


@pytest.mark.parametrize(("size", "gpus"), [(14336, {1, 2, 4, 8, 16}), (None, {1, 2, 4, 8, 16, 24})])
def test_the_tuner_is_offered_servers_that_split_experts_of_known_size_equally(size: int | None, gpus: set[int]):
    entry = known_model("mixtral-8x7b")
    experts = entry.architecture.experts.model_copy(update={"intermediate_size": size})
    sized = entry.model_copy(update={"architecture": entry.architecture.model_copy(update={"experts": experts})})
    assert {spread.gpus for spread in divided_spreads(sized, 8, 24) if not spread.expert_parallel} == gpus


def test_the_tuner_is_offered_servers_over_nodes_up_to_the_number_of_gpus(by_model: dict[str, ServerChoices]):
    offered, wide = by_model["deepseek-v3"], Parallelism(1, 16, True, 2)
    assert wide in offered.aggregated
    assert (wide, wide) in offered.disaggregated
    possible = possible_servers(known_model("gpt-oss-120b"), SHAPE, 8 * NODES, 0.95)
    for choices in (by_model["gpt-oss-120b"], possible):
        assert max(first.gpus + second.gpus for first, second in choices.disaggregated) == 8 * NODES


def test_the_tuner_is_offered_servers_that_fit_beside_a_stacks_other_models():
    other = model("agg-tp4-1r", model="llama-3.3-70b-instruct-fp8-dynamic")
    planned = planning.plan_object(stack(model("agg-tp1-1r"), other, gpuPools=[existing_pool(size=1)]))
    assert max(spread.gpus for spread in accepted_servers(planned, 0, 8).aggregated) == 4


def test_the_tuner_is_offered_no_servers_over_nodes_without_rdma_or_with_scaling():
    scaled = {"aggregated": {"minReplicas": 1, "maxReplicas": 2, "requests": 10}}
    without = document("deepseek-v3", "agg-tp8-1r")
    without["rdma"] = "none"
    for stack_object in (document("deepseek-v3", "agg-tp8ep-1r", scaling=scaled), without):
        offered = accepted_servers(planning.plan_object(stack_object), 0, 16).spreads
        assert {spread.nodes for spread in offered} == {1}


def test_the_tuner_is_offered_decode_below_prefill_size_only_for_latent_kv_caches():
    pairs = possible_servers(known_model("gpt-oss-120b"), SHAPE, 16, 0.95).disaggregated
    assert all(prefill.tensor_parallel_size <= decode.tensor_parallel_size for prefill, decode in pairs)
    latent = possible_servers(known_model("deepseek-v3"), SHAPE, 16, 0.95).disaggregated
    assert (Parallelism(8, expert_parallel=True), Parallelism(1, 8, True)) in latent


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.1-405b-instruct-fp8-dynamic"])
def test_the_tuner_is_offered_no_servers_that_a_models_weights_do_not_fit_in(name: str):
    offered = possible_servers(known_model(name), SHAPE, 16, 0.95)
    assert min(spread.gpus for spread in offered.spreads) == 4
    assert possible_servers(known_model(name), SHAPE, 2, 0.95).spreads == ()


def test_the_tuner_is_offered_whole_experts_where_their_blocks_cannot_be_shared():
    offered = choices("qwen3-235b-a22b-fp8", gpus=8).aggregated
    assert Parallelism(8, expert_parallel=True) in offered
    assert Parallelism(8) not in offered


@pytest.mark.parametrize(
    "name", [name for name in catalogue.release_names() if not known_release(name).vllm.over_nodes]
)
def test_the_tuner_is_offered_no_servers_over_nodes_that_the_release_cannot_run(name: str):
    older = {**document("gpt-oss-120b", "agg-tp1-1r"), "release": name}
    assert all(spread.nodes == 1 for spread in accepted_servers(planning.plan_object(older), 0, 16).spreads)


def test_the_memory_of_servers_offered_to_the_tuner_includes_the_draft_model():
    with_draft = choices("deepseek-r1", "agg-tp8-1r", gpus=8, engine={"speculation": {}}).memory["aggregated"]
    without = choices("deepseek-r1", "agg-tp8-1r", gpus=8).memory["aggregated"]
    assert with_draft.keys() < without.keys()  # some servers have no room for it
    for spread, memory in with_draft.items():
        assert memory.draft_gib > 0
        assert memory.key_value_tokens < without[spread].key_value_tokens
