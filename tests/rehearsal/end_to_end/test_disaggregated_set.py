"""Prefill and decode servers as roles of a DisaggregatedSet, by the real controller, on a node without room for more:
updates end when the new servers are ready.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from test_rollouts import STARTUP_S, Load, loaded
from user_project import Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK, TOPOLOGY = "together", "4p-tp1-2d-tp2"
REHEARSE = ("rehearse", "--time-scale", "0.5", "--startup-seconds", str(STARTUP_S), "--json", "--stack", STACK)
SETS = """
import json, lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.generic_resource import create_namespaced_resource

client = lightkube.Client(KubeConfig.from_env(), namespace="llm-d", trust_env=False)
Set = create_namespaced_resource("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets")
prefix = "disaggregatedset.x-k8s.io/"
found = [
    {
        "owner": item.metadata.ownerReferences[0].uid,
        "name": item.metadata.labels[prefix + "name"],
        "role": item.metadata.labels[prefix + "role"],
        "revision": item.metadata.labels[prefix + "revision"],
        "replicas": item["spec"]["replicas"],
        "ready": (item.get("status") or {}).get("readyReplicas", 0),
    }
    for item in client.list(Set)
]
print(json.dumps([item for item in found if item["replicas"]]))
"""
"""Tells of the LeaderWorkerSets that have servers."""


@dataclass(frozen=True)
class Servers:
    """Servers of the stack's DisaggregatedSet right after an update."""

    owners: frozenset[str]
    names: frozenset[str]
    revisions: frozenset[str]
    ready: Mapping[str, tuple[int, int]]
    """Ready and wanted servers by role."""

    @classmethod
    def of(cls, project: Project) -> "Servers":
        done = project.inside(STACK, sys.executable, "-c", SETS)
        sets: list[dict[str, Any]] = json.loads(done.output.splitlines()[-1])
        owners, names, revisions = (frozenset(item[key] for item in sets) for key in ("owner", "name", "revision"))
        return cls(owners, names, revisions, {item["role"]: (item["ready"], item["replicas"]) for item in sets})


def update(project: Project, *words: str, **engine: object) -> Ended:
    models = [model(topology=TOPOLOGY, disaggregatedSet=True, engine=engine)]
    project.write(STACK, release="llm-d-0.10.0", models=models)
    done = project.command(*REHEARSE, *words)
    assert done.status == 0, done.errors
    return done


@pytest.fixture(scope="module")
def rehearsed(project: Project) -> Ended:
    return update(project)


@pytest.fixture(scope="module")
def before(project: Project, rehearsed: Ended) -> Servers:
    return Servers.of(project)


@dataclass(frozen=True)
class Change:
    """An update under load: the servers right after it, and the outcomes of requests."""

    servers: Servers
    load: Load


@pytest.fixture(scope="module")
def other_setting(project: Project, before: Servers, tmp_path_factory: pytest.TempPathFactory) -> Change:
    """A setting that old and new servers may differ in."""
    assert before.ready
    with loaded(project, STACK, tmp_path_factory.mktemp("setting")) as load:
        update(project, "--no-benchmark", maxNumSeqs=128)
        servers = Servers.of(project)
    return Change(servers, load)


@pytest.fixture(scope="module")
def other_version(project: Project, other_setting: Change) -> Servers:
    """A setting by which old and new servers refuse each other."""
    assert other_setting.servers.ready
    update(project, "--no-benchmark", maxNumSeqs=128, blockSize=64)
    return Servers.of(project)


def test_servers_of_a_disaggregatedset_pass_their_benchmark(rehearsed: Ended):
    (summary,) = rehearsed.document["smoke"]
    assert summary["passed"]
    assert summary["remote_prefill"]["share"] == pytest.approx(1.0)


def test_a_first_update_ends_when_servers_of_both_roles_are_ready(before: Servers):
    assert before.ready == {"prefill": (4, 4), "decode": (2, 2)}


def test_an_update_of_a_disaggregatedset_ends_when_all_new_servers_are_ready(before: Servers, other_setting: Change):
    after = other_setting.servers
    assert after.ready == before.ready
    assert len(after.revisions) == 1
    assert after.revisions != before.revisions


def test_another_setting_rolls_inside_the_same_disaggregatedset(before: Servers, other_setting: Change):
    assert (other_setting.servers.owners, other_setting.servers.names) == (before.owners, before.names)


def test_no_request_fails_while_the_roles_of_a_disaggregatedset_roll(other_setting: Change):
    load = other_setting.load
    print(len(load.rows), len(load.failures), round(load.longest_gap_s, 1))
    assert len(load.rows) > STARTUP_S
    assert load.failures == []


def test_status_counts_the_servers_of_each_role_of_a_disaggregatedset(project: Project, other_setting: Change):
    assert other_setting.servers.ready
    own = (sys.executable, "-m", "llmd_oke", "status", "--stack", STACK, "--json")
    told = project.inside(STACK, *own).document["servers"]
    counted = {item["role"]: (item["ready"], item["desired"]) for item in told if item["role"] in {"prefill", "decode"}}
    assert counted == {"prefill": (4, 4), "decode": (2, 2)}


def test_servers_of_another_version_replace_the_disaggregatedset(other_setting: Change, other_version: Servers):
    before = other_setting.servers
    assert other_version.ready == before.ready
    assert other_version.owners.isdisjoint(before.owners)
    assert len(other_version.revisions) == 1
