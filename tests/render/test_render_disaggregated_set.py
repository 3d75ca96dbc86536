"""Prefill and decode servers as roles of a DisaggregatedSet, and the Job that waits for them."""

import pytest
from created_cluster import created
from llmd_oke.catalogue.serving import leader_worker_sets
from llmd_oke.operations.guards import gpus_of
from llmd_oke.values import module_folder
from render_support import selects, validate_by_definition
from stack_files import model

WIDE = "1p-tp1dp16ep-1d-tp1dp16ep"
RELEASE = {"release": "llm-d-0.10.0"}
TEMPLATES, REVISION = "llmd-oke/templates", "disaggregatedset.x-k8s.io/revision"


@pytest.fixture
def changed(varied):
    """The rehearsal's stack with one DisaggregatedSet for both roles, and with these changes of its model."""
    return lambda **changes: varied(stack=RELEASE, disaggregatedSet=True, **changes)


@pytest.fixture
def together(changed):
    return changed()


def declared(rendered, kind):
    (found,) = [item for item in rendered.resources if item.type.endswith(f":{kind}")]
    return found


def both(rendered):
    return declared(rendered, "DisaggregatedSet").inputs


def roles(rendered):
    return {role["name"]: role for role in both(rendered)["spec"]["roles"]}


def pods(role):
    return role["spec"]["leaderWorkerTemplate"]["workerTemplate"]


def job(rendered):
    (found,) = [item for item in rendered.resources if item.type.endswith(":Job") and item.name.endswith("-wait")]
    return found


def words(rendered):
    (container,) = job(rendered).inputs["spec"]["template"]["spec"]["containers"]
    return [word.removeprefix("--") for word in container["args"]]


def test_both_roles_are_one_disaggregatedset_in_place_of_deployments(together):
    assert {name: role["spec"]["replicas"] for name, role in roles(together).items()} == {"prefill": 8, "decode": 4}
    deployments = [item["metadata"]["name"] for item in together.manifests() if item["kind"] == "Deployment"]
    assert not [name for name in deployments if name.endswith(("-prefill", "-decode"))]


def test_a_disaggregatedset_has_the_labels_of_its_model_and_of_its_unit(together):
    metadata = both(together)["metadata"]
    assert metadata["labels"]["llmd-oke/model"] == "gpt-oss-120b"
    assert metadata["labels"]["llmd-oke/unit"] == metadata["name"]


def test_servers_inside_a_node_are_groups_of_one_pod_that_restarts_in_place(together):
    for role in roles(together).values():
        group = role["spec"]["leaderWorkerTemplate"]
        assert (group["size"], group["restartPolicy"]) == (1, "None")
        assert "affinity" not in pods(role)["spec"]


def test_pods_of_a_disaggregatedset_are_those_of_deployments_and_a_digest(together, varied):
    apart = varied(stack=RELEASE)
    for name, role in roles(together).items():
        template = apart.kubernetes("Deployment", f"gpt-oss-120b-{name}")["spec"]["template"]
        own = pods(role)["metadata"]["labels"]
        assert {key: own[key] for key in own if key != TEMPLATES} == template["metadata"]["labels"]
        assert pods(role)["spec"] == template["spec"]


def test_a_disaggregatedset_is_valid_by_its_definition(together):
    source = leader_worker_sets().definitions
    name = next(file for file in source.files if "disaggregatedset" in file)
    validate_by_definition(both(together), module_folder(source.module, source.version) / source.folder / name)


def test_budgets_and_network_policies_choose_the_pods_of_each_role(together):
    for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for name, role in roles(together).items():
            chosen = together.kubernetes(kind, f"gpt-oss-120b-{name}")["spec"][field]["matchLabels"]
            assert selects(chosen, pods(role)["metadata"]["labels"])


def test_an_update_counts_the_gpus_of_all_roles_of_a_disaggregatedset(together):
    assert gpus_of(both(together)) == 16


def test_a_job_waits_for_the_servers_with_the_templates_of_this_update(together):
    digests = {pods(role)["metadata"]["labels"][TEMPLATES] for role in roles(together).values()}
    assert len(digests) == 1
    name = both(together)["metadata"]["name"]
    assert {f"name={name}", "servers=prefill=8", "servers=decode=4", f"templates={digests.pop()}"} <= {*words(together)}
    assert job(together).inputs["metadata"]["annotations"] == {"pulumi.com/replaceUnready": "true"}


def test_the_job_waits_as_long_as_the_slowest_role_may_take_to_start_or_update(together):
    (limit_s,) = [int(word.removeprefix("limit-s=")) for word in words(together) if word.startswith("limit-s=")]
    assert job(together).inputs["spec"]["activeDeadlineSeconds"] > limit_s
    assert int(job(together).timeouts["create"].removesuffix("s")) > limit_s


def test_the_job_may_list_sets_only_and_reaches_the_api_server_only(together):
    name = job(together).inputs["spec"]["template"]["spec"]["serviceAccountName"]
    found = {item["kind"]: item for item in together.manifests() if item["metadata"].get("name") == name}
    assert found["Role"]["rules"] == [
        {"apiGroups": ["leaderworkerset.x-k8s.io"], "resources": ["leaderworkersets"], "verbs": ["list"]}
    ]
    spec = found["NetworkPolicy"]["spec"]
    assert selects(spec["podSelector"]["matchLabels"], job(together).inputs["spec"]["template"]["metadata"]["labels"])
    assert spec["ingress"] == []
    assert [[port["port"] for port in rule["ports"]] for rule in spec["egress"]] == [[443, 6443]]


def test_the_front_door_waits_for_the_job_and_the_job_for_the_set(together):
    assert declared(together, "DisaggregatedSet").urn in job(together).depends_on
    (door,) = together.of_type("llmd-oke:index:FrontDoor")
    assert job(together).urn in door.depends_on


def test_another_setting_of_one_role_starts_a_new_job_and_new_servers_of_both(together, changed):
    """The controller replaces all roles if the template of one changes, so that the Job waits for all."""
    other = changed(engine={"decode": {"maxNumSeqs": 128}})
    assert both(other)["metadata"]["name"] == both(together)["metadata"]["name"]
    assert job(other).inputs["metadata"]["name"] != job(together).inputs["metadata"]["name"]
    before, after = (
        {pods(role)["metadata"]["labels"][TEMPLATES] for role in roles(item).values()} for item in (together, other)
    )
    assert len(before | after) == 2


def test_another_number_of_servers_changes_no_template_and_starts_a_new_job(together, changed):
    other = changed(topology="8p-tp1-5d-tp2")
    assert pods(roles(other)["decode"]) == pods(roles(together)["decode"])
    assert job(other).inputs["metadata"]["name"] != job(together).inputs["metadata"]["name"]
    assert job(together).delete_before_replace


def test_servers_that_would_refuse_each_other_replace_the_old_ones_at_once(together):
    resource = declared(together, "DisaggregatedSet")
    assert resource.delete_before_replace
    for label in ("version", "tensor-parallel-size", "data-parallel-size"):
        assert f'spec.roles[*].metadata.labels["llmd-oke/{label}"]' in resource.replace_on_changes
    for role in roles(together).values():
        assert role["metadata"]["labels"]["llmd-oke/version"] == pods(role)["metadata"]["labels"]["llmd-oke/version"]


def test_the_controller_is_installed_before_a_disaggregatedset(rendered):
    own = model("8p-tp1-4d-tp2", disaggregatedSet=True)
    stack = rendered(created(models=[own], leaderWorkerSets="install", **RELEASE))
    (unit,) = stack.of_type("llmd-oke:index:PrefillDecodeUnit")
    assert [urn for urn in unit.depends_on if urn.endswith("::leader-worker-sets-release")]


def test_servers_over_nodes_are_told_peers_of_their_own_revision(rendered):
    own = model(
        WIDE, model="deepseek-v3", name="deepseek", disaggregatedSet=True, engine={"kvCache": {"connector": "mori-io"}}
    )
    images = {"vllmImage": "docker.io/rocm/vllm:own", "routingSidecarImage": "docker.io/rocm/sidecar:own"}
    stack = rendered(created(models=[own], override=images, **RELEASE))
    template = pods(roles(stack)["decode"])
    names = {container["name"]: container for container in template["spec"]["initContainers"]}
    host = "$(LLMD_OKE_UNIT)-$(DISAGGREGATED_SET_REVISION)-prefill"
    assert f"{host}-0.{host}.$(POD_NAMESPACE).svc" in names["peer-names"]["args"]
    assert f"{host}-0-1.{host}.$(POD_NAMESPACE).svc" in names["peer-names"]["args"]
    for container in (names["peer-names"], names["routing-proxy"]):
        fields = {entry["name"]: entry.get("valueFrom", {}).get("fieldRef", {}) for entry in container["env"]}
        assert fields["DISAGGREGATED_SET_REVISION"] == {"fieldPath": f"metadata.labels['{REVISION}']"}
    assert all(role["spec"]["leaderWorkerTemplate"]["size"] == 2 for role in roles(stack).values())
