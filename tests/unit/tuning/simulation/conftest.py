"""Deployments to simulate."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from llmd_tuner.latency import LatencyModel
from llmd_tuner.simulation.deployment import Policy, SimulatedDeployment, deployment
from tuning_for_tests import LATENCY, MODEL, SHAPE


@pytest.fixture(name="latency", scope="session")
def latency_fixture() -> LatencyModel:
    """The latency model of gpt-oss-120b on MI300X."""
    return LATENCY


@pytest.fixture(name="deploy", scope="session")
def deploy_fixture() -> Callable[..., SimulatedDeployment]:
    """Make deployments of gpt-oss-120b from short forms; `limits` change those of every server."""

    def deploy(topology: str, *, copies: int = 1, policy: Policy = "queue", **limits: int) -> SimulatedDeployment:
        made = deployment(MODEL, SHAPE, topology, copies=copies, policy=policy)
        return replace(made, limits={role: replace(limit, **limits) for role, limit in made.limits.items()})

    return deploy
