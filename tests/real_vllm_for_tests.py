"""vLLM itself, for tests that need it and run alone."""

import os
from collections.abc import Iterator

import pytest
from llmd_oke.program.declare import Rendered
from llmd_rehearsal.real_vllm import environment
from llmd_rehearsal.real_vllm.environment import RealVllm

VERSION = "0.26.0"
"""The default release's."""

REQUIRED = "LLMD_OKE_TESTS_NEED_VLLM"
"""Variable with which a test that lacks vLLM fails in place of being skipped; `scripts/real-vllm` sets it."""


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
    if REQUIRED in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


def rendered_servers(rendered: Rendered) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield arguments and variables of each container that runs `vllm serve`."""
    for declared in rendered.resources:
        if declared.type.endswith(":Deployment"):
            for container in declared.inputs["spec"]["template"]["spec"]["containers"]:
                if container.get("command") == ["vllm", "serve"]:
                    yield container["args"], {entry["name"]: entry.get("value", "") for entry in container["env"]}
