from typing import Any

import pytest
from stack_files import model, plan, problems

TOPOLOGY = "2p-tp1-1d-tp2"
FOR_ALL = "engine.extraArgs, for all servers"
QUICK_REDUCE = "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"


def started(engine: dict[str, Any]) -> dict[str, Any]:
    """Settings of the servers of each role."""
    return {role.role: role.settings for role in plan(model(TOPOLOGY, engine=engine)).models[0].units[0].roles}


def found(engine: dict[str, Any], topology: str = TOPOLOGY) -> list[tuple[str, str]]:
    return [(problem.path, problem.accepted) for problem in problems(model(topology, engine=engine))]


def test_settings_of_a_role_override_those_of_all_roles():
    roles = started({"maxNumSeqs": 128, "prefill": {"maxNumSeqs": 16, "maxNumBatchedTokens": 32768}})
    assert (roles["prefill"].max_num_seqs, roles["decode"].max_num_seqs) == (16, 128)
    assert roles["prefill"].table["max_num_batched_tokens"] == 32768
    assert "max_num_batched_tokens" not in roles["decode"].table


def test_vllm_arguments_of_a_role_are_appended_to_those_of_all_roles():
    engine = {
        "extraArgs": ["--seed=1"],
        "env": {"A": "1", "VLLM_LOGGING_LEVEL": "INFO"},
        "decode": {"extraArgs": ["--stream-interval=4"], "env": {"VLLM_LOGGING_LEVEL": "DEBUG"}},
    }
    roles = started(engine)
    assert roles["prefill"].extra_args == ("--seed=1",)
    assert roles["decode"].extra_args == ("--seed=1", "--stream-interval=4")
    assert roles["decode"].env == {"A": "1", "VLLM_LOGGING_LEVEL": "DEBUG"}
    assert roles["prefill"].env["VLLM_LOGGING_LEVEL"] == "INFO"


def test_settings_that_may_differ_between_roles_do_not_change_the_version_label():
    from llmd_oke.program.models import _server_spec  # noqa: PLC0415
    from llmd_oke.serving.vllm import version  # noqa: PLC0415

    graphs = ["-cc.cudagraph_mode=FULL_DECODE_ONLY", "--no-enforce-eager"]
    planned = plan(model(TOPOLOGY, engine={"decode": {"extraArgs": graphs}, "prefill": {"maxNumSeqs": 8}}))
    of_model = planned.models[0]
    versions = {version(_server_spec(planned, of_model, role)) for role in of_model.units[0].roles}
    assert len(versions) == 1


def test_gpu_memory_of_a_role_is_planned_with_the_roles_own_gpumemoryutilization():
    engine = {"gpuMemoryUtilization": 0.9, "prefill": {"gpuMemoryUtilization": 0.6}}
    roles = plan(model("1p-tp1-1d-tp1", engine=engine)).models[0].units[0].roles
    assert roles[0].memory.key_value_gib < roles[1].memory.key_value_gib


@pytest.mark.parametrize(
    ("role", "changes", "key", "accepted"),
    [
        *(
            ("prefill", {"extraArgs": ["--stream-interval=2", argument]}, "extraArgs[1]", FOR_ALL)
            for argument in (
                "--kv-cache-dtype=fp8",
                "--attention-backend=ROCM_AITER_FA",
                "--speculative-config.method=mtp",
                "--of-a-later-vllm",
            )
        ),
        ("prefill", {"extraArgs": ["--max-num-seqs=8"]}, "extraArgs[0]", "engine.maxNumSeqs"),
        ("decode", {"env": {"VLLM_ROCM_USE_AITER": "0"}}, "env.VLLM_ROCM_USE_AITER", "engine.env, for all servers"),
        ("decode", {"env": {"HF_TOKEN": "hf_x"}}, "env.HF_TOKEN", "`pulumi config set --secret"),
        ("prefill", {"env": {QUICK_REDUCE: "INT4"}}, f"env.{QUICK_REDUCE}", "override.quickReduce"),
    ],
)
def test_arguments_and_variables_that_both_roles_must_share_are_refused_for_one_role(
    role: str, changes: dict[str, Any], key: str, accepted: str
):
    ((path, told),) = found({role: changes})
    assert path == f"models[0].engine.{role}.{key}"
    assert told.startswith(accepted)


def test_vllm_settings_for_a_role_that_the_topology_lacks_are_refused():
    assert found({"aggregated": {"maxNumSeqs": 8}}) == [("models[0].engine.aggregated", "prefill or decode")]
    assert found({"decode": {"maxNumSeqs": 8}}, "agg-tp1-1r") == [("models[0].engine.decode", "aggregated")]
