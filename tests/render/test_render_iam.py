"""Dynamic groups and policies as they are declared to OCI."""

import pytest
from llmd_base.errors import KitError
from llmd_oke.catalogue.cluster import policies
from llmd_oke.cluster.iam import Iam
from llmd_oke.testing import declared
from oci_contract import OciMocks, oci_resources, require_known_arguments

POLICY = "oci:Identity/policy:Policy"
CLASSIC = "oci:Identity/dynamicGroup:DynamicGroup"
IN_DOMAIN = "oci:Identity/domainsDynamicResourceGroup:DomainsDynamicResourceGroup"
PROVIDER = "pulumi:providers:oci"

BASE = {
    "compartment_id": "ocid1.compartment.oc1..c",
    "tenancy_id": "ocid1.tenancy.oc1..t",
    "cluster_id": "ocid1.cluster.oc1.iad.k",
    "region": "us-ashburn-1",
    "display_name": "prod",
}
ALL = {
    "needs": list(policies().needs),
    "resource_ids": {
        name: ["ocid1.key.oc1.iad.k"]
        for name in (
            "cluster_key_id",
            "boot_volume_key_id",
            "managed_boot_volume_key_id",
            "host_group_id",
            "tag_namespace",
        )
    },
}


def iam(config=None, **changes):
    mocks = OciMocks()
    keys = {f"oci:{key}": value for key, value in (config or {}).items()}
    args = {**BASE, "needs": ["self-managed-nodes"], **changes}
    rendered = declared(lambda: Iam("iam", args), config=keys, cluster=mocks)
    return rendered, mocks


def statements(rendered, name="iam-policy"):
    return rendered.resource(POLICY, name).inputs["statements"]


@pytest.mark.parametrize("style", ["classic", "identity-domain"])
def test_both_supported_oci_plug_ins_know_every_argument_of_iam_resources(style):
    require_known_arguments(oci_resources(iam(style=style, network_compartment_id="n", **ALL)[0]))


def test_with_identity_domains_the_dynamic_group_is_named_with_its_domain():
    rendered, _ = iam(domain="gpu", domain_url="https://idcs-2.identity.oraclecloud.com")
    (group,) = rendered.of_type(IN_DOMAIN)
    assert group.inputs["idcsEndpoint"] == "https://idcs-2.identity.oraclecloud.com"
    assert group.inputs["displayName"] == "prod-nodes"
    assert group.inputs["matchingRule"] == "ALL {instance.compartment.id = 'ocid1.compartment.oc1..c'}"
    assert group.inputs["schemas"] == ["urn:ietf:params:scim:schemas:oracle:idcs:DynamicResourceGroup"]
    assert group.inputs["tags"] == [{"key": "llmd-oke/stack", "value": "llmd-oke/test"}]
    assert set(group.ignore_changes) == {"definedTags", "schemas", "tags"}
    assert statements(rendered) == [
        "Allow dynamic-group 'gpu'/'prod-nodes' to {CLUSTER_JOIN} in compartment id ocid1.compartment.oc1..c"
        " where target.cluster.id = 'ocid1.cluster.oc1.iad.k'"
    ]


@pytest.mark.parametrize("tags", [{"freeform_tags": {"team": "a"}}, {"defined_tags": {"Operations.CostCenter": "42"}}])
def test_either_kind_of_tags_of_a_dynamic_group_in_an_identity_domain_reaches_oci(tags):
    (group,) = iam(**tags)[0].of_type(IN_DOMAIN)
    assert group.inputs["schemas"][1:] == ["urn:ietf:params:scim:schemas:oracle:idcs:extension:OCITags"]
    own = {"key": "llmd-oke/stack", "value": "llmd-oke/test"}
    expected = {
        "freeform_tags": {"freeformTags": [own, {"key": "team", "value": "a"}]},
        "defined_tags": {
            "freeformTags": [own],
            "definedTags": [{"namespace": "Operations", "key": "CostCenter", "value": "42"}],
        },
    }
    (kind,) = tags
    assert group.inputs["urnietfparamsscimschemasoracleidcsextensionOciTags"] == expected[kind]


def test_without_identity_domains_the_dynamic_group_is_in_the_root_compartment():
    rendered, _ = iam(style="classic")
    (group,) = rendered.of_type(CLASSIC)
    assert group.inputs["compartmentId"] == "ocid1.tenancy.oc1..t"
    assert group.inputs["name"] == "prod-nodes"
    assert group.inputs["freeformTags"] == {"llmd-oke/stack": "llmd-oke/test"}
    assert statements(rendered)[0].startswith("Allow dynamic-group prod-nodes to {CLUSTER_JOIN} ")


def test_an_existing_dynamic_group_is_referenced_by_its_ocid():
    rendered, _ = iam(dynamic_group_ids={"nodes": "ocid1.dynamicgroup.oc1..g"})
    assert rendered.of_type(IN_DOMAIN) == []
    assert statements(rendered)[0].startswith("Allow dynamic-group id ocid1.dynamicgroup.oc1..g to {CLUSTER_JOIN} ")


def test_no_dynamic_group_is_declared_if_no_policy_statement_uses_it():
    rendered, mocks = iam(needs=["managed-compute-cluster"])
    assert rendered.of_type(IN_DOMAIN) == []
    assert "oci:Identity/getDomains:getDomains" not in mocks.calls
    assert statements(rendered) == [
        "Allow any-user to {COMPUTE_CLUSTER_LAUNCH_INSTANCE} in compartment id ocid1.compartment.oc1..c"
        " where request.principal.type = 'nodepool'"
    ]


def test_without_needed_iam_permissions_no_iam_resource_is_declared():
    rendered, mocks = iam(needs=[])
    assert [resource.type for resource in rendered.resources] == ["llmd-oke:index:Iam"]
    assert mocks.calls == {}


def test_each_policy_is_attached_to_the_compartment_that_it_grants_access_to():
    rendered, _ = iam(
        network_compartment_id="ocid1.compartment.oc1..n",
        image_compartment_id="ocid1.compartment.oc1..i",
        key_compartment_id="ocid1.compartment.oc1..k",
        reservation_compartment_id="ocid1.compartment.oc1..r",
        **ALL,
    )
    places = {policy.name: policy.inputs["compartmentId"] for policy in rendered.of_type(POLICY)}
    assert places == {
        "iam-policy": "ocid1.compartment.oc1..c",
        "iam-network-policy": "ocid1.compartment.oc1..n",
        "iam-images-policy": "ocid1.compartment.oc1..i",
        "iam-keys-policy": "ocid1.compartment.oc1..k",
        "iam-reservations-policy": "ocid1.compartment.oc1..r",
        "iam-tags-policy": "ocid1.tenancy.oc1..t",
        "iam-tenancy-policy": "ocid1.tenancy.oc1..t",
    }
    for name, place in places.items():
        if place != "ocid1.tenancy.oc1..t":
            assert all(f" in compartment id {place} " in f"{text} " for text in statements(rendered, name))
    assert all(" in tenancy where " in text for text in statements(rendered, "iam-tags-policy"))
    assert statements(rendered, "iam-tenancy-policy") == [
        "Allow service lustrefs to use virtual-network-family in tenancy"
    ]


@pytest.mark.parametrize("same", [{}, {"network_compartment_id": "ocid1.compartment.oc1..c"}])
def test_a_network_in_the_clusters_compartment_needs_no_iam_policy_of_its_own(same):
    rendered, _ = iam(needs=["file-storage"], **same)
    assert [policy.name for policy in rendered.of_type(POLICY)] == ["iam-policy"]
    assert len(statements(rendered)) == 2


def test_policies_have_names_tags_and_at_most_as_many_statements_as_oci_allows():
    for policy in iam(**ALL)[0].of_type(POLICY):
        assert policy.inputs["name"] == policy.name.replace("iam", "prod", 1)
        assert policy.inputs["freeformTags"] == {"llmd-oke/stack": "llmd-oke/test"}
        assert len(policy.inputs["description"]) <= 400
        assert 0 < len(policy.inputs["statements"]) <= 50


def test_iam_resources_are_declared_in_the_home_region_that_oci_reports():
    rendered, mocks = iam(**ALL)
    (home,) = rendered.of_type(PROVIDER)
    assert home.inputs["region"] == "us-phoenix-1"
    assert all(resource.provider.startswith(home.urn) for resource in oci_resources(rendered))
    asked = mocks.calls["oci:Identity/getRegionSubscriptions:getRegionSubscriptions"]
    assert asked["tenancyId"] == "ocid1.tenancy.oc1..t"


def test_a_home_region_and_identity_domain_in_the_arguments_are_not_looked_up_in_oci():
    rendered, mocks = iam(home_region="us-phoenix-1", domain_url="https://idcs-2.identity.oraclecloud.com")
    assert mocks.calls == {}
    assert rendered.of_type(PROVIDER)[0].inputs["region"] == "us-phoenix-1"


@pytest.mark.parametrize("changes", [{"home_region": "us-ashburn-1"}, {"provider_is_home": True}])
def test_a_stack_in_the_home_region_declares_no_additional_oci_provider(changes):
    rendered, mocks = iam(**changes)
    assert rendered.of_type(PROVIDER) == []
    assert "oci:Identity/getRegionSubscriptions:getRegionSubscriptions" not in mocks.calls


def test_the_home_regions_oci_provider_authenticates_as_the_stacks_provider_does():
    config = {"tenancyOcid": "t", "userOcid": "u", "fingerprint": "f", "privateKey": "pem", "region": "us-ashburn-1"}
    (home,) = iam(config, home_region="us-phoenix-1")[0].of_type(PROVIDER)
    matches = {key: home.inputs[key] for key in ("tenancyOcid", "userOcid", "fingerprint", "privateKey", "region")}
    assert matches == {**config, "region": "us-phoenix-1"}
    assert home.secret_inputs == {"privateKey"}


def test_an_unknown_iam_permission_is_refused():
    with pytest.raises(KitError, match="'gpus' is no need"):
        iam(needs=["gpus"])
