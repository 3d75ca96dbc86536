"""vLLM itself, for tests that need it and run alone."""

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from llmd_oke.operations.guards import SERVERS, pod_templates
from llmd_oke.program.declare import Rendered
from llmd_pods.compiled_code.start import server_command
from llmd_pods.kv_cache_disk import serve
from llmd_rehearsal.pods.environment import expand
from llmd_rehearsal.program_definitions import tools_folder
from llmd_rehearsal.real_vllm import environment
from llmd_rehearsal.real_vllm.environment import RealVllm

VERSION = os.environ.get("LLMD_OKE_TESTS_VLLM_VERSION", "0.26.0")
"""The default release's, or another that `tools/vllm` has."""


def need_real_vllm(version: str = VERSION) -> RealVllm:
    """Return the environment of a version of vLLM; skip where it isn't installed, or where other tests run beside this
    one.
    """
    vllm = environment.installed(version)
    if vllm is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        return vllm
    reason = "no vLLM itself: scripts/real-vllm installs it"
    if vllm is not None:
        reason = "NIXL's handshake has five seconds, which tests beside it would take: scripts/real-vllm"
    pytest.skip(reason)


def answered(program: str, asked: object, version: str = VERSION) -> Any:
    """Return what a program of `tools/vllm` answers in the environment of a version of vLLM, both as JSON."""
    done = subprocess.run(
        [str(need_real_vllm(version).python), str(tools_folder() / "vllm" / program)],
        input=json.dumps(asked),
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def rendered_servers(rendered: Rendered) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield arguments and variables of each container that runs `vllm serve`, of the first pod where servers span
    nodes.
    """
    for declared in rendered.resources:
        templates = pod_templates(declared.inputs) if declared.type in SERVERS else ()
        for container in [container for _, template in templates for container in template["spec"]["containers"]]:
            if server_command(serve.server_command(container.get("command", ()))) == ["vllm", "serve"]:
                variables = {entry["name"]: entry.get("value", "") for entry in container["env"]}
                of_leader = {**variables, "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "leader"}
                yield [expand(word, of_leader) for word in container["args"]], variables
