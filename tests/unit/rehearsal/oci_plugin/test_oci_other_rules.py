"""What OCI refuses of rights and storage."""

import pytest
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal
from oci_region import DOMAIN, PLACE, Region


@pytest.fixture
def region() -> Region:
    return Region()


@pytest.mark.parametrize(
    "statement",
    [
        "Allow dynamic-group id ocid1.x.oc1..a to {CLUSTER_JOIN} in compartment id x where target.cluster.id='y'",
        "Allow dynamic-group 'Default'/'nodes' to read repos in tenancy",
        "allow any-user to {A_B, C_D} in compartment name where ALL {request.principal.type='nodepool'}",
        "Allow service lustrefs to use virtual-network-family in tenancy",
    ],
)
def test_statements_that_oci_reads_pass(region: Region, statement: str):
    region.create("Policy", compartmentId=PLACE, name="p", description="d", statements=[statement])


@pytest.mark.parametrize(
    "statement", ["Permit nobody", "Allow group g to look repos in tenancy", "Allow dynamic-group d to manage x"]
)
def test_statements_that_oci_cannot_read_are_refused(region: Region, statement: str):
    with pytest.raises(Refusal, match="Failed to parse the policy statement"):
        region.create("Policy", compartmentId=PLACE, name="p", description="d", statements=[statement])


def test_names_of_policies_are_theirs_alone(region: Region):
    policy = {
        "compartmentId": PLACE,
        "name": "p",
        "description": "d",
        "statements": ["Allow any-user to use x in tenancy"],
    }
    region.create("Policy", **policy)
    with pytest.raises(Refusal, match="409-PolicyAlreadyExists"):
        region.create("Policy", **policy)


def test_dynamic_groups_are_the_tenancys(region: Region):
    group = {"name": "g", "description": "d", "matchingRule": "ANY {instance.compartment.id = 'x'}"}
    region.create("DynamicGroup", compartmentId="ocid1.tenancy.oc1..a", **group)
    with pytest.raises(Refusal, match="root compartment"):
        region.create("DynamicGroup", compartmentId=PLACE, **group | {"name": "h"})
    with pytest.raises(Refusal, match="matching rule"):
        region.create(
            "DynamicGroup", compartmentId="ocid1.tenancy.oc1..a", **group | {"name": "h", "matchingRule": "x"}
        )


def test_a_file_system_goes_after_its_exports(region: Region):
    where = {"compartmentId": PLACE, "availabilityDomain": DOMAIN}
    subnet = region.subnet(region.vcn(), "10.0.0.0/24")
    system, target = region.create("FileSystem", **where), region.create("MountTarget", **where, subnetId=subnet["id"])
    export = {"fileSystemId": system["id"], "exportSetId": target["exportSetId"], "path": "/models"}
    made = region.create("Export", **export)
    with pytest.raises(Refusal, match="Another export with path /models"):
        region.create("Export", **export)
    with pytest.raises(Refusal, match="409-Conflict"):
        region.delete(system)
    region.delete(made)
    region.delete(system)
    assert target["ipAddress"] == "10.0.0.10"
