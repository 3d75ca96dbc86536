"""A resource's life: made, changed, read and deleted, also after the plug-in has started anew."""

from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_rehearsal.oci_plugin.facts import resource_of
from llmd_rehearsal.oci_plugin.faults import parse_rule, write_rules
from llmd_rehearsal.oci_plugin.region import RegionClock, WorkRequestFailed, read_journal
from llmd_rehearsal.plugin_values import InitFailed, OperationRefusal
from oci_region import COMPARTMENT, DOMAIN, Region, pool


def test_a_created_vcn_is_available_and_has_the_defaults_that_oci_sets(region: Region):
    vcn = region.vcn()
    assert vcn["id"].startswith("ocid1.vcn.oc1.iad.aaaaaaaa")
    assert (vcn["state"], vcn["cidrBlock"], vcn["freeformTags"]) == ("AVAILABLE", "10.0.0.0/16", {})
    assert vcn["defaultSecurityListId"].startswith("ocid1.securitylist.")


def test_the_endpoint_of_a_created_oke_cluster_is_the_rehearsals_api_server(region: Region):
    cluster = region.cluster(region.vcn())
    assert cluster["endpoints"][0]["privateEndpoint"] == "10.244.0.1:6443"
    assert cluster["availableKubernetesUpgrades"] == ["v1.35.2", "v1.36.1"]


def test_deleting_an_oke_cluster_resets_the_local_etcd_to_its_state_at_creation(region: Region):
    cluster = region.cluster(region.vcn())
    assert region.store.calls == ["snapshot"]
    region.delete(cluster)
    assert region.store.calls == ["snapshot", "restore"]


def test_a_subnet_gets_the_networks_default_route_table_and_security_list(region: Region):
    vcn = region.vcn()
    subnet = region.subnet(vcn, "10.0.1.0/24")
    assert subnet["routeTableId"] == vcn["defaultRouteTableId"]
    assert (subnet["virtualRouterIp"], subnet["securityListIds"]) == ("10.0.1.1", [vcn["defaultSecurityListId"]])


def test_an_update_of_an_oci_resource_keeps_properties_that_its_inputs_omit(region: Region):
    before = region.compute_cluster(displayName="a")
    after = region.update("ComputeCluster", before, compartmentId=COMPARTMENT, availabilityDomain=DOMAIN)
    assert after == before


def test_reading_a_deleted_resource_returns_nothing_and_deleting_it_succeeds(region: Region):
    vcn = region.vcn()
    order = region.order("Vcn", {"compartmentId": COMPARTMENT, "cidrBlocks": ["10.0.0.0/16"]}, "v")
    region.delete(vcn)
    region.operations.delete(vcn["id"], order)
    assert region.operations.read(vcn["id"], {}) is None
    with pytest.raises(OperationRefusal, match="404-NotAuthorizedOrNotFound"):
        region.operations.update(vcn["id"], vcn, order)


def test_a_restarted_oci_stand_in_knows_the_existing_resources(tmp_path: Path):
    journal = tmp_path / "oci" / "journal.jsonl"
    region = Region(journal)
    vcn, gone = region.vcn(), region.vcn("10.1.0.0/16")
    subnet = region.subnet(vcn, "10.0.0.0/24")
    region.create("NodePool", **pool(region.cluster(vcn), subnet, size=2))
    region.delete(gone)
    region.records.close()
    anew = Region(journal)
    assert anew.operations.read(vcn["id"], {}) == region.operations.read(vcn["id"], {})
    assert anew.operations.read(gone["id"], {}) is None
    assert [machine["name"] for machine in anew.records.all_of("NodePool")[0].machines] == ["gpu-0", "gpu-1"]


def test_the_oci_stand_in_ignores_an_incompletely_written_entry_of_its_journal(tmp_path: Path):
    journal = tmp_path / "journal.jsonl"
    region = Region(journal)
    vcn = region.vcn()
    region.delete(vcn)
    region.records.close()
    rows = read_journal(journal)
    journal.write_bytes(journal.read_bytes()[:-9])
    assert read_journal(journal) == rows[:-1]
    anew = Region(journal)
    assert anew.operations.read(vcn["id"], {}) is not None
    anew.delete(vcn)
    assert read_journal(journal)[-1] == {"id": vcn["id"]}


def test_an_oci_operation_longer_than_its_timeout_fails():
    with pytest.raises(WorkRequestFailed, match="timeout while waiting for state to become 'SUCCEEDED'"):
        RegionClock(0).work(resource_of("oci:Core/clusterNetwork:ClusterNetwork"), "create", 60)


def test_a_cancelled_oci_operation_stops_waiting_and_fails():
    clock = RegionClock(1000)
    clock.cancel()
    with pytest.raises(WorkRequestFailed, match="cancelled"):
        clock.work(resource_of("oci:ContainerEngine/cluster:Cluster"), "create", 3600)


class TestFaults:
    @pytest.fixture
    def faults(self, tmp_path: Path) -> Path:
        return tmp_path / "oci-faults.yaml"

    @pytest.fixture
    def region(self, faults: Path) -> Region:
        return Region(faults=faults)

    @pytest.fixture
    def inputs(self, region: Region) -> dict[str, Any]:
        vcn = region.vcn()
        return pool(region.cluster(vcn), region.subnet(vcn, "10.0.0.0/19"))

    def test_requests_that_oci_throttles_are_retried_but_fail_in_the_end(self, region: Region, faults: Path):
        faults.write_text("faults: [{resource: Vcn, fault: too-many-requests, times: 3}]")
        assert region.vcn()["state"] == "AVAILABLE"
        faults.write_text("faults: [{resource: Vcn, fault: too-many-requests}]")
        with pytest.raises(OperationRefusal, match="429-TooManyRequests, Too many requests for the user"):
            region.vcn()

    def test_an_injected_internal_error_of_oci_creates_no_resource(self, region: Region, faults: Path):
        faults.write_text("faults: [{resource: Vcn, fault: internal-error, times: 1}]")
        with pytest.raises(OperationRefusal, match="500-InternalError, Internal server error\nSuggestion: The service"):
            region.vcn()
        assert region.records.all_of("Vcn") == []
        region.vcn()

    def test_a_failed_node_pool_is_deleted_but_pulumi_gets_its_id(self, region: Region, faults: Path, inputs: Any):
        faults.write_text("faults: [{resource: NodePool, fault: out-of-host-capacity, nodes: 2, times: 1}]")
        with pytest.raises(InitFailed, match=r"2 node\(s\) launch failure\. .* Out of host capacity\.") as failure:
            region.create("NodePool", **inputs)
        assert failure.value.properties["state"] == "CREATING"
        assert (region.nodes.there, region.operations.read(failure.value.id, {})) == ({}, None)

    def test_a_pool_deleted_after_its_failure_is_recreated_not_updated(self, region: Region, faults: Path, inputs: Any):
        faults.write_text("faults: [{resource: NodePool, fault: late-failure, times: 1}]")
        with pytest.raises(InitFailed) as failure:
            region.create("NodePool", **inputs)
        with pytest.raises(OperationRefusal, match="404-NotAuthorizedOrNotFound"):
            region.update("NodePool", failure.value.properties, **inputs)
        region.create("NodePool", **inputs)
        assert len(region.nodes.there) == 9

    def test_a_pool_that_cannot_grow_keeps_its_nodes_and_grows_later(self, region: Region, faults: Path, inputs: Any):
        before = region.create("NodePool", **inputs)
        inputs["nodeConfigDetails"]["size"] = 11
        write_rules(faults, [parse_rule("NodePool:out-of-host-capacity:1")])
        with pytest.raises(InitFailed, match=r"2 node\(s\) launch failure") as failure:
            region.update("NodePool", before, **inputs)
        assert (failure.value.properties, len(region.nodes.there)) == (before, 9)
        repaired = region.update("NodePool", before, **inputs)
        assert (repaired["state"], len(repaired["nodes"]), len(region.nodes.there)) == ("ACTIVE", 11, 11)

    def test_a_pool_whose_nodes_never_join_is_deleted_again(self, region: Region, faults: Path, inputs: dict[str, Any]):
        faults.write_text("faults: [{resource: NodePool, name: gpu, fault: node-never-joins, nodes: 1, times: 1}]")
        with pytest.raises(InitFailed, match=r"1 node\(s\) register timeout"):
            region.create("NodePool", **inputs)
        assert (region.nodes.there, region.records.all_of("NodePool")) == ({}, [])

    def test_a_node_pool_whose_creation_takes_longer_than_its_timeout_is_kept_in_oci(self, region: Region, inputs: Any):
        with pytest.raises(InitFailed, match="timeout while waiting"):
            region.operations.create(region.order("NodePool", inputs, "gpu", timeout_s=60))
        assert [pool.state["state"] for pool in region.records.all_of("NodePool")] == ["FAILED"]

    def test_a_cluster_whose_creation_fails_is_deleted_again(self, region: Region, faults: Path):
        faults.write_text("faults: [{resource: Cluster, fault: late-failure, times: 1, message: No quota left}]")
        vcn = region.vcn()
        with pytest.raises(InitFailed, match=r"Work Request error(.|\n)*Message: No quota left"):
            region.cluster(vcn)
        assert region.records.all_of("Cluster") == []

    def test_an_oci_resource_whose_creation_fails_late_keeps_lifecycle_state_failed(self, region: Region, faults: Path):
        faults.write_text("faults: [{resource: Vcn, fault: late-failure, times: 1}]")
        with pytest.raises(InitFailed) as failure:
            region.vcn()
        assert failure.value.properties["state"] == "FAILED"

    def test_a_create_request_whose_answer_is_lost_or_late_creates_only_one_vcn(self, region: Region, faults: Path):
        faults.write_text("faults: [{resource: Vcn, fault: answer-lost, times: 3}]")
        before = region.vcn()
        assert [vcn.id for vcn in region.records.all_of("Vcn")] == [before["id"]]
        faults.write_text("faults: [{resource: Vcn, fault: answer-lost}]")
        with pytest.raises(OperationRefusal, match=r"can not create Core Vcn: .* net/http: request canceled"):
            region.vcn()
        assert [vcn.state["state"] for vcn in region.records.all_of("Vcn")] == ["AVAILABLE", "AVAILABLE"]

    def test_deleting_a_vcn_deletes_its_default_security_list(self, region: Region):
        vcn = region.vcn()
        region.create("DefaultSecurityList", manageDefaultResourceId=vcn["defaultSecurityListId"])
        region.delete(vcn)
        assert region.records.all_of("DefaultSecurityList") == []

    def test_a_vcn_exists_in_oci_although_the_plug_ins_wait_for_it_timed_out(self, region: Region, faults: Path):
        faults.write_text("faults: [{resource: Vcn, fault: timeout}]")
        with pytest.raises(InitFailed, match="timeout while waiting") as failure:
            region.vcn()
        (there,) = region.records.all_of("Vcn")
        assert (failure.value.id, there.state["state"]) == (there.id, "AVAILABLE")

    def test_the_slow_fault_makes_creating_a_vcn_exceed_a_timeout_that_else_suffices(
        self, region: Region, faults: Path
    ):
        faults.write_text("faults: [{resource: Vcn, fault: slow}]")
        inputs = {"compartmentId": COMPARTMENT, "cidrBlocks": ["10.0.0.0/16"]}
        with pytest.raises(InitFailed, match="timeout while waiting"):
            region.operations.create(region.order("Vcn", inputs, "it", timeout_s=3))
        faults.write_text("faults: []")
        region.operations.create(region.order("Vcn", inputs, "it", timeout_s=3))

    def test_an_injected_oci_fault_applies_to_the_resource_names_that_it_lists(self, region: Region, faults: Path):
        faults.write_text('faults: [{resource: "*", name: "gpu*", fault: internal-error}]')
        region.vcn()
        with pytest.raises(OperationRefusal, match="500-InternalError"):
            region.vcn(displayName="gpu-network")

    def test_a_failed_delete_of_an_oci_resource_can_be_repeated(self, region: Region, faults: Path):
        faults.write_text("faults: [{resource: Vcn, operation: delete, fault: late-failure, times: 1}]")
        vcn = region.vcn()
        with pytest.raises(InitFailed):
            region.delete(vcn)
        region.delete(vcn)
        assert region.records.all_of("Vcn") == []

    def test_an_injected_oci_fault_in_short_form_applies_to_every_operation(self, region: Region, faults: Path):
        vcn = region.vcn()
        write_rules(faults, [parse_rule("Vcn/it:internal-error:2")])
        with pytest.raises(OperationRefusal, match="500-InternalError"):
            region.update("Vcn", vcn, compartmentId=COMPARTMENT, cidrBlocks=["10.0.0.0/16"])
        with pytest.raises(OperationRefusal, match="500-InternalError"):
            region.delete(vcn)
        region.delete(vcn)

    @pytest.mark.parametrize("text", ["NodePool", "NodePool:earthquake", "Vcn:internal-error:0", ":internal-error"])
    def test_an_unknown_injected_oci_fault_is_refused_with_the_known_ones(self, text: str):
        with pytest.raises(KitError, match="is no fault") as refused:
            parse_rule(text)
        assert "out-of-host-capacity" in (refused.value.remedy or "")
        assert "ClusterNetwork" in (refused.value.remedy or "")

    def test_an_unknown_resource_type_in_a_fault_is_refused_with_the_nearest_names(self):
        with pytest.raises(KitError, match="OCI has no 'NodePol' here") as refused:
            parse_rule("NodePol:internal-error")
        assert refused.value.remedy is not None
        assert refused.value.remedy.startswith("Did you mean NodePool? Types of OCI's resources here: Addon,")

    def test_an_oci_fault_file_that_lists_no_valid_fault_is_refused_by_name(self, region: Region, faults: Path):
        faults.write_text("faults: [{fault: earthquake}]")
        with pytest.raises(OperationRefusal, match=r"oci-faults\.yaml holds no faults"):
            region.vcn()
