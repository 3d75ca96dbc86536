"""Data and expert parallelism of servers inside a node: what is planned, and what is refused."""

import pytest
from llmd_base.errors import InvalidStack
from llmd_bench.deployment import Parallelism
from llmd_oke import planning
from llmd_oke.planning.planned_model import memory
from stack_files import existing_pool, known_model, known_shape, model, stack

MIXTURE, DENSE = "qwen3-235b-a22b-fp8", "qwen3-32b"
SHAPE = known_shape()


def plan(name: str, topology: object, **changes: object) -> planning.ModelPlan:
    (planned,) = planning.plan_object(document(name, topology, **changes)).models
    return planned


def document(name: str, topology: object, **changes: object) -> dict[str, object]:
    return stack(model(topology, model=name, **changes), gpuPools=[existing_pool(size=4)])


def problems(name: str, topology: object, **changes: object) -> list[tuple[str, str]]:
    with pytest.raises(InvalidStack) as error:
        planning.plan_object(document(name, topology, **changes))
    return [(problem.path, problem.why) for problem in error.value.problems]


def long_form(**servers: object) -> dict[str, object]:
    return {"aggregated": {"replicas": 1, "tensorParallelSize": 1, **servers}}


def test_a_server_has_gpus_functions_and_sequences_for_each_data_parallel_rank():
    (role,) = plan(MIXTURE, "agg-tp2dp4ep-2r").units[0].roles
    assert role.parallelism == Parallelism(2, 4, expert_parallel=True)
    assert role.gpus == 16
    assert role.settings.max_num_seqs == 4 * plan(MIXTURE, "agg-tp4-1r").max_num_seqs
    disaggregated = plan(MIXTURE, "1p-tp1dp8ep-1d-tp4dp2ep").units[0].roles
    assert [role.virtual_functions for role in disaggregated] == [8, 8]


def test_data_parallel_ranks_share_experts_and_copy_the_other_weights():
    known = known_model(MIXTURE)
    one, two = (memory(known, SHAPE, Parallelism(4, ranks), 0.9).weights_gib for ranks in (1, 2))
    assert two - one == pytest.approx(known.work.dense_weight_gb * 1e9 / 2**30)


def test_data_parallel_ranks_hold_separate_latent_kv_caches():
    known = known_model("deepseek-v3")
    split, ranks = (memory(known, SHAPE, spread, 0.95) for spread in (Parallelism(8), Parallelism(1, 8)))
    assert ranks.key_value_tokens > 6 * split.key_value_tokens
    assert ranks.sequences(100_000) == 8 * (ranks.key_value_tokens // 8 // 100_000)


def test_expert_parallelism_defaults_to_the_models_recipe():
    assert plan("deepseek-v3", "agg-tp8-1r").units[0].roles[0].parallelism.expert_parallel
    given = long_form(tensorParallelSize=8, expertParallel=False)
    assert not plan("deepseek-v3", given).units[0].roles[0].parallelism.expert_parallel
    assert str(plan("deepseek-v3", given).topology) == "aggregated 1 x tp8"


def test_data_parallel_ranks_of_a_dense_model_are_refused():
    assert [path for path, _ in problems(DENSE, "agg-tp1dp2-3r")] == ["models[0].topology"]
    paths = [path for path, _ in problems(DENSE, long_form(dataParallelSize=2, expertParallel=True))]
    assert paths == [f"models[0].topology.aggregated.{key}" for key in ("dataParallelSize", "expertParallel")]


@pytest.mark.parametrize(
    ("size", "ranks", "why"), [(2, 6, "have all of their GPUs"), (3, 8, "a rank can't span nodes")]
)
def test_data_parallel_ranks_over_several_nodes_must_use_all_gpus_of_the_nodes(size: int, ranks: int, why: str):
    found = problems(MIXTURE, long_form(tensorParallelSize=size, dataParallelSize=ranks))
    assert "models[0].topology.aggregated.dataParallelSize" in [path for path, _ in found]
    assert any(why in told for _, told in found)


@pytest.mark.parametrize(
    "argument", ["--data-parallel-size=2", "-dp", "--enable_expert_parallel", "-ep", "--data-parallel-hybrid-lb"]
)
def test_vllm_arguments_that_would_change_the_planned_parallelism_are_refused(argument: str):
    found = problems(MIXTURE, "agg-tp4-1r", engine={"extraArgs": [argument]})
    assert [path for path, _ in found] == ["models[0].engine.extraArgs[0]"]


def test_check_reports_how_endpoint_pickers_treat_data_parallel_ranks():
    for topology, told in (("agg-tp4dp2ep-1r", True), ("agg-tp4-1r", False)):
        texts = [item.text for item in planning.plan_object(document(MIXTURE, topology)).advice]
        assert any("first rank alone" in text for text in texts) is told
