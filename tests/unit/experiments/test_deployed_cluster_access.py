import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path

import pytest
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.models.core_v1 import ServiceSpec
from lightkube.resources.core_v1 import Service
from llmd_base.addresses import PodAddress
from llmd_base.errors import KitError
from llmd_oke.operations import cluster_access
from llmd_oke.operations.cluster_access import RENEW_S, Authorization, ClusterAccess

RUNS = 'echo >> {runs}; printf \'{{"status": {{"token": "t%s"}}}}\' $(wc -l < {runs})'
"""A program that gives another token each time."""

SigningIn = Callable[..., SingleConfig]


@pytest.fixture(name="signing_in")
def signing_in_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make a kubeconfig whose user signs in by this script."""

    def make(script: str = RUNS.format(runs=tmp_path / "runs")) -> SingleConfig:
        program = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "sh", "args": ["-c", script]}
        result = KubeConfig.from_dict(
            {
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"exec": program}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
        monkeypatch.setattr(KubeConfig, "from_env", lambda: result)
        config = result.get()
        assert config
        return config

    return make


def authorization(config: SingleConfig, now: list[float]) -> Authorization:
    return Authorization(config, clock=lambda: now[0])


def test_a_cluster_token_is_reused_while_it_is_valid_and_renewed_before_it_expires(signing_in: SigningIn):
    now = [0.0]
    header = authorization(signing_in(), now)
    assert [dict(header) for _ in range(3)] == [{"Authorization": "Bearer t1"}] * 3
    now[0] = RENEW_S
    assert dict(header) == {"Authorization": "Bearer t2"}


def test_a_child_process_uses_the_cluster_token_it_was_passed(signing_in: SigningIn, monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    header = authorization(signing_in(), now)
    copy = deepcopy(header)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    now[0] = 10 * RENEW_S
    assert copy == dict(header) == {"Authorization": "Bearer t1"}


@pytest.mark.parametrize("script", ["exit 1", "echo no JSON", "echo {}"])
def test_a_kubeconfigs_token_command_that_prints_no_token_is_reported(signing_in: SigningIn, script: str):
    with pytest.raises(KitError, match="can't sign in"):
        dict(authorization(signing_in(script), [0.0]))
    with pytest.raises(KitError, match="can't be listed"):
        ClusterAccess().pods("ns", {})


def test_a_connection_to_a_pod_has_a_current_token_and_expires(signing_in: SigningIn, monkeypatch: pytest.MonkeyPatch):
    signing_in()
    monkeypatch.setattr(cluster_access, "RENEW_S", 0.0)
    access = ClusterAccess()
    way = access.pod("ns", PodAddress("p", "127.0.0.1"), 1)
    assert dict(way.headers) != dict(way.headers)
    assert access.expires(way)


class Services:
    """A cluster's Services by namespace and name."""

    def __init__(self, specs: Mapping[tuple[str, str], ServiceSpec]) -> None:
        self.specs = specs

    def get(self, _kind: object, name: str, *, namespace: str) -> Service:
        return Service(spec=self.specs[namespace, name])


BEHIND = Services(
    {
        ("llm-d", "gpt"): ServiceSpec(type="ExternalName", externalName="shared.gateways.svc.cluster.local"),
        ("gateways", "shared"): ServiceSpec(clusterIP="10.96.0.7"),
    }
)


@pytest.mark.parametrize(
    ("reachable", "url"),
    [
        (True, "http://10.96.0.7"),
        (False, "https://127.0.0.1:1/api/v1/namespaces/gateways/services/shared:80/proxy"),
    ],
)
def test_a_model_behind_a_gateway_is_called_with_the_host_name_of_its_service(
    signing_in: SigningIn, monkeypatch: pytest.MonkeyPatch, reachable: bool, url: str
):
    signing_in()
    access = ClusterAccess()
    monkeypatch.setattr(access, "_client", BEHIND)
    monkeypatch.setattr(cluster_access, "is_reachable", lambda *_: reachable)
    way = access.service("llm-d", "gpt")
    assert (way.url, way.headers["host"]) == (url, "gpt.llm-d.svc.cluster.local")
    assert ("Authorization" in way.headers, access.expires(way)) == (not reachable, not reachable)
