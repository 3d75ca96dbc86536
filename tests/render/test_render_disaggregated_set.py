"""Prefill and decode servers as roles of a DisaggregatedSet, and the Job that waits for them."""

import jsonschema
import pytest
import yaml
from llmd_oke import planning
from llmd_oke.catalogue.serving import leader_worker_sets
from llmd_oke.operations.guards import gpus_of
from llmd_oke.values import module_folder
from stack_files import model
from test_render_valid import without_unknown_fields

UNIT = "gpt-oss-120b"
WIDE = "1p-tp1dp16ep-1d-tp1dp16ep"
RELEASE = {"release": "llm-d-0.10.0"}
TEMPLATES, REVISION = "llmd-oke/templates", "disaggregatedset.x-k8s.io/revision"


@pytest.fixture
def together(varied):
    """The rehearsal's stack with one DisaggregatedSet for both roles."""
    return varied(stack=RELEASE, disaggregatedSet=True)


def both(rendered):
    (found,) = [item for item in rendered.manifests() if item["kind"] == "DisaggregatedSet"]
    return found


def roles(rendered):
    return {role["name"]: role for role in both(rendered)["spec"]["roles"]}


def pods(role):
    return role["spec"]["leaderWorkerTemplate"]["workerTemplate"]


def job(rendered):
    (found,) = [item for item in rendered.manifests() if item["kind"] == "Job" and "-wait-" in item["metadata"]["name"]]
    return found


def words(rendered):
    (container,) = job(rendered)["spec"]["template"]["spec"]["containers"]
    return dict(word.removeprefix("--").split("=", 1) for word in container["args"])


def test_both_roles_are_one_disaggregatedset_and_no_deployments(together):
    found = roles(together)
    assert {name: role["spec"]["replicas"] for name, role in found.items()} == {"prefill": 8, "decode": 4}
    assert {role["spec"]["leaderWorkerTemplate"]["size"] for role in found.values()} == {1}
    kinds = {item["kind"] for item in together.manifests() if "llm-d.ai/role" in item["metadata"].get("labels", {})}
    assert kinds == set()
    print(job(together))
    print(both(together)["metadata"])
