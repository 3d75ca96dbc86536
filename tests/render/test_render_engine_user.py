"""Servers that run as a user in place of root."""

from typing import Any

import pytest
from llmd_oke.testing import Rendered
from render_support import pod, vllm
from stack_files import model, problems

USER = {"user": {"id": 1000, "groups": [44, 109]}}
CACHE = {"modelCache": {"kind": "node-disk"}}


@pytest.fixture
def as_user(varied: Any) -> Rendered:
    return varied(engine=USER)


@pytest.mark.parametrize("server", ["gpt-oss-120b-prefill", "gpt-oss-120b-decode"])
def test_servers_run_as_the_configured_user_with_the_groups_of_the_gpu_devices(as_user: Rendered, server: str):
    security = vllm(as_user, server)["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 1000)
    assert pod(as_user, server)["spec"]["securityContext"]["supplementalGroups"] == [44, 109]


def test_the_vllm_user_has_the_group_of_the_container_that_fills_the_model_cache(varied: Any):
    stack = varied(stack={"storage": CACHE}, engine=USER)
    (fills,) = [
        item for item in pod(stack, "gpt-oss-120b-decode")["spec"]["initContainers"] if item["name"] == "prewarm"
    ]
    assert vllm(stack, "gpt-oss-120b-decode")["securityContext"]["runAsGroup"] == fills["securityContext"]["runAsGroup"]


def test_the_home_of_the_vllm_user_is_tmp_and_its_cache_folders_are_writable(as_user: Rendered):
    """Home and caches are in folders of the pod, or in the one that everybody may write to."""
    server = vllm(as_user, "gpt-oss-120b-decode")
    home = {item["name"]: item.get("value") for item in server["env"]}["HOME"]
    written = {mount["mountPath"] for mount in server["volumeMounts"] if not mount.get("readOnly")}
    assert home == "/tmp"
    assert {"/.cache", "/.config", "/.triton"} <= written


def test_the_vllm_user_has_a_name_that_the_image_need_not_know(as_user: Rendered, rehearsal: Rendered):
    """PyTorch asks for it, and ends where neither a variable nor /etc/passwd has one (vllm issue 44548)."""
    named = {item["name"]: item.get("value") for item in vllm(as_user, "gpt-oss-120b-decode")["env"]}
    assert named["USER"] == "llm-d"
    assert "USER" not in {item["name"] for item in vllm(rehearsal, "gpt-oss-120b-decode")["env"]}


def test_without_a_configured_user_servers_run_as_the_user_of_their_image(rehearsal: Rendered):
    assert "runAsUser" not in vllm(rehearsal, "gpt-oss-120b-decode")["securityContext"]
    assert "supplementalGroups" not in pod(rehearsal, "gpt-oss-120b-decode")["spec"]["securityContext"]


@pytest.mark.parametrize("user", [{"id": 0}, {"id": -1}, {"id": 1000, "groups": [-1]}, {}])
def test_root_and_non_numeric_users_are_refused_with_their_path_in_the_stack_file(user: dict[str, Any]):
    paths = [problem.path for problem in problems(model(engine={"user": user}))]
    assert paths
    assert all(path.startswith("models[0].engine.user") for path in paths)


def test_a_user_for_vllm_is_refused_if_servers_download_into_a_root_owned_folder():
    (problem,) = problems(model(engine=USER), storage={**CACHE, "prewarm": {"source": "none"}})
    assert problem.path == "models[0].engine.user"
