from typing import Any

import pytest
from llmd_oke.access.oci_client import OciError, StoredFile
from llmd_oke.catalogue.cluster import cloud_init
from llmd_oke.config import validate
from llmd_oke.operations.findings import Finding, Verdict, exit_code
from llmd_oke.operations.preflight import preflight
from oci_for_tests import FakeOci
from stack_files import DOMAIN, created_pool, created_stack, existing_cluster, stack

IMAGE = created_pool()["image"]["ocid"]
CLUSTER = "ocid1.cluster.oc1.iad.k"


def available(service: str, limit: str) -> str:
    return f"limits /services/{service}/limits/{limit}/resourceAvailability"


AVAILABLE = {"shapeAvailabilities": [{"availabilityStatus": "AVAILABLE", "availableCount": 12}]}
ANSWERS: dict[str, Any] = {
    "containerengine /clusterOptions/all": {"kubernetesVersions": ["v1.33.1", "v1.34.2"]},
    "containerengine /clusters": [],
    "containerengine /addonOptions": [
        {"name": "NodeFeatureDiscovery", "versions": [{"versionNumber": "v0.17.3"}]},
        {"name": "NvidiaNetworkOperator", "versions": [{"versionNumber": "v25.7.0"}, {"versionNumber": "v25.10.0"}]},
    ],
    "containerengine /nodePoolOptions/all": {
        "sources": [{"sourceName": "Oracle-Linux-8.10-2026.07.31-0-OKE-1.34.2-1330", "imageId": "i"}]
    },
    "limits /limitDefinitions": [
        *({"name": f"gpu-{name}-count", "scopeType": "AD"} for name in ("mi300x", "mi355x")),
        *({"name": f"standard-e5-{name}-count", "scopeType": "AD"} for name in ("core", "memory")),
        *({"name": name, "scopeType": "REGION"} for name in ("enhanced-cluster-count", "vcn-count")),
    ],
    "identity /availabilityDomains": [{"name": DOMAIN}, {"name": "Uocm:US-ASHBURN-AD-2"}],
    available("compute", "gpu-mi300x-count"): {"available": 72},
    available("compute", "standard-e5-core-count"): {"available": 32},
    available("compute", "standard-e5-memory-count"): {"available": 512},
    available("container-engine", "enhanced-cluster-count"): {"available": 3},
    available("vcn", "vcn-count"): {"available": 10},
    "POST compute /computeCapacityReports": AVAILABLE,
    f"compute /images/{IMAGE}": {
        "lifecycleState": "AVAILABLE",
        "displayName": "ubuntu",
        "operatingSystem": "Canonical Ubuntu",
        "operatingSystemVersion": "24.04",
    },
    f"compute /images/{IMAGE}/shapes": [{"shape": "BM.GPU.MI300X.8"}],
}


INDEX = "\n\n".join(f"Package: oci-oke-node-all-{patch}\nVersion: 1" for patch in ("1.34.1", "1.34.2", "1.34.20"))


def read_index(uri: str) -> str:
    """A repository whose index is not packed."""
    if uri.endswith(".gz"):
        raise OciError(404, "", "answered with 404")
    return INDEX if uri.endswith("/ubuntu-noble/kubernetes-1.34/dists/stable/main/binary-amd64/Packages") else ""


def look(answers: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **pool: Any) -> list[Finding]:
    config = validate(created_stack(created_pool(**pool), cluster=cluster))
    return preflight(FakeOci({**ANSWERS, **(answers or {})}), config, read_text=read_index)


def only(check: str, findings: list[Finding]) -> Finding:
    (finding,) = [item for item in findings if item.check == check]
    return finding


def test_preflight_passes_a_tenancy_with_everything_that_is_needed():
    findings = look()
    assert {finding.check for finding in findings} == {
        *("versions", "add-ons", "node image", "limits", "capacity", "image", "packages")
    }
    assert {finding.verdict for finding in findings} == {Verdict.FINE}
    assert exit_code(findings) == 0


@pytest.mark.parametrize("by_identifier", [False, True])
@pytest.mark.parametrize(
    ("running", "verdict"),
    [
        ("v1.34.2", Verdict.FINE),
        ("v1.33.1", Verdict.FINE),
        ("v1.32.1", Verdict.PROBLEM),
        ("v1.35.1", Verdict.PROBLEM),
    ],
)
def test_preflight_checks_that_upgrades_are_of_one_minor_version(running: str, verdict: Verdict, by_identifier: bool):
    gone = {"lifecycleState": "DELETED", "kubernetesVersion": "v1.30.1"}
    there = {"lifecycleState": "ACTIVE", "kubernetesVersion": running}
    if by_identifier:
        findings = look({f"containerengine /clusters/{CLUSTER}": there}, cluster={"clusterId": CLUSTER})
    else:
        findings = look({"containerengine /clusters": [gone, there]})
    assert [item.verdict for item in findings if f"the cluster runs {running}" in item.value] == [verdict]


def test_preflight_reports_an_add_on_version_that_oke_no_longer_has():
    options = [{"name": "NvidiaNetworkOperator", "versions": [{"versionNumber": "v26.1.0"}]}]
    findings = [item for item in look({"containerengine /addonOptions": options}) if item.check == "add-ons"]
    assert [(item.verdict, item.value) for item in findings] == [
        (Verdict.PROBLEM, "OKE has no NodeFeatureDiscovery for v1.34.2"),
        (Verdict.PROBLEM, "OKE has no NvidiaNetworkOperator v25.10.0 for v1.34.2"),
    ]
    assert "one of v26.1.0" in findings[1].remedy


def test_preflight_reports_a_kubernetes_version_without_an_oke_node_image():
    finding = only("node image", look({"containerengine /nodePoolOptions/all": {"sources": []}}))
    assert (finding.verdict, finding.path) == (Verdict.PROBLEM, "systemPool")
    assert finding.value == "OKE has no image for v1.34.2"


def limit(path: str, findings: list[Finding]) -> Finding:
    (finding,) = [item for item in findings if item.check == "limits" and item.path == path]
    return finding


GPUS = f"available in {DOMAIN}; 72 GPUs wanted"


@pytest.mark.parametrize(
    ("service", "name", "free", "path", "verdict", "said"),
    [
        ("compute", "gpu-mi300x-count", 16, "gpuPools[0].size", Verdict.PROBLEM, GPUS),
        ("compute", "gpu-mi300x-count", 71, "gpuPools[0].size", Verdict.PROBLEM, GPUS),
        ("compute", "gpu-mi300x-count", 72, "gpuPools[0].size", Verdict.FINE, GPUS),
        ("compute", "standard-e5-core-count", 23, "systemPool.ocpus", Verdict.PROBLEM, "48 OCPUs wanted"),
        ("compute", "standard-e5-core-count", 24, "systemPool.ocpus", Verdict.UNKNOWN, "48 OCPUs wanted"),
        ("compute", "standard-e5-core-count", 31, "systemPool.ocpus", Verdict.UNKNOWN, "48 OCPUs wanted"),
        ("compute", "standard-e5-core-count", 32, "systemPool.ocpus", Verdict.FINE, "48 OCPUs wanted"),
        ("container-engine", "enhanced-cluster-count", 0, "cluster", Verdict.PROBLEM, ""),
        ("vcn", "vcn-count", 0, "cluster.network", Verdict.PROBLEM, ""),
    ],
)
def test_preflight_compares_service_limits_with_what_the_stack_takes_in_their_units(
    service: str, name: str, free: int, path: str, verdict: Verdict, said: str
):
    finding = limit(path, look({available(service, name): {"available": free}}))
    assert finding.verdict is verdict
    assert f"{free} available" in finding.value
    assert said in finding.value


def test_pools_that_share_an_oci_service_limit_are_checked_together():
    more = {"name": "more", "size": 1, "ocpus": 64, "memoryGib": 128, "availabilityDomains": [DOMAIN]}
    findings = preflight(FakeOci(ANSWERS), validate(created_stack(cpuPools=[more])), read_text=read_index)
    finding = limit("systemPool.ocpus", findings)
    assert finding.verdict is Verdict.PROBLEM
    assert "112 OCPUs wanted (systemPool.ocpus, cpuPools[0].ocpus)" in finding.value


def test_what_oci_does_not_report_leaves_its_own_check_unknown_and_hides_no_other():
    refused = OciError(404, "NotAuthorizedOrNotFound", "OCI refuses")
    findings = look({available("container-engine", "enhanced-cluster-count"): refused})
    assert limit("cluster", findings).verdict is Verdict.UNKNOWN
    assert limit("gpuPools[0].size", findings).verdict is Verdict.FINE
    findings = look({"limits /limitDefinitions": refused})
    assert only("limits", findings).verdict is Verdict.UNKNOWN
    assert only("image", findings).verdict is Verdict.FINE
    assert exit_code(findings) == 0


def test_an_existing_vcn_and_nodes_of_a_capacity_reservation_need_no_service_limit():
    ocid = "ocid1.vcn.oc1.iad.v"
    answers = {f"compute /vcns/{ocid}": {"cidrBlocks": ["10.0.0.0/16"]}}
    findings = look(answers, cluster={"network": {"vcnId": ocid, "cidr": "10.0.0.0/16"}})
    assert not [item for item in findings if item.check == "limits" and item.path == "cluster.network"]
    used_up = {available("compute", "gpu-mi300x-count"): {"available": 0}}
    findings = look(used_up, capacityReservationId="ocid1.r.oc1..r")
    assert not [item for item in findings if item.check == "limits" and item.path.startswith("gpuPools")]


def test_an_unknown_name_of_a_service_limit_is_reported_with_similar_names():
    finding = limit("gpuPools[0].size", look(shape="BM.GPU.MI355X.8"))
    assert finding.verdict is Verdict.UNKNOWN
    assert "gpu-mi355x-count" in finding.value
    assert "72 GPUs" in finding.remedy


def test_only_service_limits_of_an_availability_domain_are_queried_with_its_name():
    client = FakeOci(ANSWERS)
    preflight(client, validate(created_stack()), read_text=read_index)
    asked = {path: query for path, query in client.asked if "resourceAvailability" in path}
    assert asked[available("compute", "gpu-mi300x-count")]["availabilityDomain"] == DOMAIN
    assert "availabilityDomain" not in asked[available("vcn", "vcn-count")]


SCALED = {"scaling": {"mode": "cluster-autoscaler", "minSize": 2, "maxSize": 12}}


@pytest.mark.parametrize(
    ("status", "count", "pool", "verdict"),
    [
        ("OUT_OF_HOST_CAPACITY", 0, {}, Verdict.PROBLEM),
        ("HARDWARE_NOT_SUPPORTED", None, {}, Verdict.PROBLEM),
        ("AVAILABLE", 3, {}, Verdict.PROBLEM),
        ("AVAILABLE", 8, SCALED, Verdict.PROBLEM),
        ("AVAILABLE", 9, SCALED, Verdict.UNKNOWN),
        ("AVAILABLE", 12, SCALED, Verdict.FINE),
    ],
)
def test_preflight_compares_oci_capacity_with_a_pools_initial_and_maximum_size(
    status: str, count: int | None, pool: dict[str, Any], verdict: Verdict
):
    report = {"availabilityStatus": status, "availableCount": count}
    finding = only(
        "capacity", look({"POST compute /computeCapacityReports": {"shapeAvailabilities": [report]}}, **pool)
    )
    assert (finding.verdict, bool(finding.remedy)) == (verdict, verdict is not Verdict.FINE)
    assert status in finding.value or verdict is not Verdict.PROBLEM


def reserved(count: int, used: int = 0, **changes: Any) -> dict[str, Any]:
    """A reservation of instances of one shape."""
    row = {"instanceShape": "BM.GPU.MI300X.8", "reservedCount": count, "usedCount": used, **changes}
    return {"lifecycleState": "ACTIVE", "availabilityDomain": DOMAIN, "instanceReservationConfigs": [row]}


RESERVATION = "ocid1.capacityreservation.oc1.iad.r"
RESERVED = f"compute /computeCapacityReservations/{RESERVATION}"
PLACED = {"faultDomains": ["FAULT-DOMAIN-1"]}


@pytest.mark.parametrize(
    ("reservation", "pool", "verdict"),
    [
        (reserved(9), PLACED, Verdict.FINE),
        (reserved(9, faultDomain="FAULT-DOMAIN-1"), PLACED, Verdict.FINE),
        (reserved(9, faultDomain="FAULT-DOMAIN-2"), PLACED, Verdict.PROBLEM),
        (reserved(9, instanceShape="BM.GPU.MI355X.8"), PLACED, Verdict.PROBLEM),
        ({**reserved(9), "availabilityDomain": "Uocm:US-ASHBURN-AD-2"}, PLACED, Verdict.PROBLEM),
        ({**reserved(9), "lifecycleState": "DELETING"}, PLACED, Verdict.PROBLEM),
        (reserved(10, used=0), {}, Verdict.FINE),
        (reserved(10, used=2), {}, Verdict.PROBLEM),
        (reserved(8), SCALED, Verdict.PROBLEM),
        (reserved(9), SCALED, Verdict.UNKNOWN),
        (reserved(12), SCALED, Verdict.FINE),
    ],
)
def test_a_capacity_reservation_counts_by_its_shape_placement_and_free_instances(
    reservation: dict[str, Any], pool: dict[str, Any], verdict: Verdict
):
    finding = only("capacity", look({RESERVED: reservation}, capacityReservationId=RESERVATION, **pool))
    assert (finding.path, finding.verdict) == ("gpuPools[0].capacityReservationId", verdict)
    assert ("not for scaling.maxSize" in finding.value) is (verdict is Verdict.UNKNOWN)


TAG = {"llmd-oke/stack": "llmd-oke/prod"}


def full(nodes: int, launch: str = "managed-compute-cluster", reservation: str | None = None) -> dict[str, Any]:
    """A tenancy whose limits and capacity the stack has used up; `nodes` of its pool run."""
    used_up = {key: {"available": 0} for key in ANSWERS if key.startswith("limits /services/")}
    tags: dict[str, Any] = {
        "managed-compute-cluster": {"metadata": {"oke-pool-id": "pool"}},
        "cluster-network": {"freeformTags": {"oci:compute:instancepool": "instances"}},
        "compute-cluster-instances": {"freeformTags": TAG},
    }
    node = {"lifecycleState": "RUNNING", "capacityReservationId": reservation, **tags[launch]}
    system = [{"lifecycleState": "RUNNING", "displayName": "s", "metadata": {"oke-pool-id": "system"}}] * 3
    stopped = {"lifecycleState": "TERMINATED", "displayName": "mi300x-0", **tags[launch]}
    other = {"lifecycleState": "RUNNING", "displayName": "mi300x-0", "metadata": {"oke-pool-id": "another"}}
    cluster = {"lifecycleState": "ACTIVE", "kubernetesVersion": "v1.34.2", "freeformTags": TAG}
    pools = [
        {"id": "pool", "name": "mi300x", "freeformTags": TAG},
        {"id": "system", "name": "system", "freeformTags": TAG},
        {"id": "another", "name": "mi300x", "freeformTags": {"llmd-oke/stack": "llmd-oke/dev"}},
    ]
    return {
        **used_up,
        "POST compute /computeCapacityReports": {
            "shapeAvailabilities": [{"availabilityStatus": "OUT_OF_HOST_CAPACITY", "availableCount": 0}]
        },
        "containerengine /clusters": [cluster],
        "containerengine /nodePools": pools,
        "compute /clusterNetworks": [
            {"displayName": "mi300x", "freeformTags": TAG, "instancePools": [{"id": "instances"}]}
        ],
        "compute /vcns": [{"lifecycleState": "AVAILABLE", "freeformTags": TAG}],
        "compute /instances": [
            *({**node, "displayName": f"mi300x-{i}"} for i in range(nodes)),
            *system,
            stopped,
            other,
        ],
    }


def look_again(answers: dict[str, Any], **pool: Any) -> list[Finding]:
    """A look at the tenancy of a stack that has been deployed."""
    config = validate(created_stack(created_pool(**pool)))
    client = FakeOci({**ANSWERS, **answers})
    return preflight(client, config, read_text=read_index, stack_tag="llmd-oke/prod")


@pytest.mark.parametrize("launch", ["managed-compute-cluster", "cluster-network", "compute-cluster-instances"])
def test_preflight_passes_a_tenancy_that_is_full_of_the_stacks_own_nodes(launch: str):
    findings = look_again(full(9, launch), launch=launch)
    assert {finding.verdict for finding in findings} == {Verdict.FINE}
    assert only("running", findings).value == "9 nodes of the stack run"
    wanted = "0 GPUs wanted (gpuPools[0].size), beside those of the 9 nodes that run"
    assert wanted in limit("gpuPools[0].size", findings).value


@pytest.mark.parametrize(("nodes", "verdict"), [(9, Verdict.FINE), (8, Verdict.PROBLEM)])
def test_the_stacks_own_nodes_in_a_capacity_reservation_count_as_its_capacity(nodes: int, verdict: Verdict):
    answers = {**full(nodes, reservation=RESERVATION), RESERVED: reserved(nodes, nodes)}
    assert only("capacity", look_again(answers, capacityReservationId=RESERVATION)).verdict is verdict


def test_nodes_that_do_not_run_yet_or_are_not_listed_need_limits_and_capacity():
    findings = look_again(full(8))
    assert limit("gpuPools[0].size", findings).verdict is Verdict.PROBLEM
    assert "8 GPUs wanted" in limit("gpuPools[0].size", findings).value
    assert only("capacity", findings).verdict is Verdict.PROBLEM
    refused = OciError(404, "NotAuthorizedOrNotFound", "OCI refuses instances")
    findings = look_again({**full(9), "compute /instances": refused})
    assert only("running", findings).verdict is Verdict.UNKNOWN
    assert limit("gpuPools[0].size", findings).verdict is Verdict.PROBLEM


@pytest.mark.parametrize(("free", "verdict"), [(13, Verdict.FINE), (12, Verdict.PROBLEM)])
def test_pools_of_one_capacity_reservation_share_its_free_instances(free: int, verdict: Verdict):
    of_both = {"capacityReservationId": RESERVATION}
    config = validate(created_stack(created_pool(**of_both), created_pool(name="second", size=4, **of_both)))
    findings = preflight(FakeOci({**ANSWERS, RESERVED: reserved(free)}), config, read_text=read_index)
    first, second = [finding for finding in findings if finding.check == "capacity"]
    assert (first.verdict, second.verdict) == (Verdict.FINE, verdict)
    assert second.value.endswith("for the pools mi300x, second together")


def test_service_limits_are_checked_for_an_autoscaled_pools_maximum_size():
    finding = limit("gpuPools[0].scaling.maxSize", look(**SCALED))
    assert finding.verdict is Verdict.PROBLEM
    assert "96 GPUs wanted" in finding.value


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("", {"lifecycleState": "IMPORTING", "displayName": "u"}, "IMPORTING"),
        ("/shapes", [{"shape": "VM.Standard.E5.Flex"}], "not for BM.GPU.MI300X.8"),
    ],
    ids=["still imported", "for other shapes"],
)
def test_a_node_image_that_nodes_cannot_boot_from_is_a_problem(path: str, answer: Any, said: str):
    finding = only("image", look({f"compute /images/{IMAGE}{path}": answer}))
    assert (finding.path, finding.verdict) == ("gpuPools[0].image.ocid", Verdict.PROBLEM)
    assert said in finding.value


def test_without_an_oke_node_package_the_check_is_unknown_as_the_image_may_have_it():
    finding = only("packages", look(cluster={"kubernetesVersion": "v1.34.3"}))
    assert (finding.verdict, finding.path) == (Verdict.UNKNOWN, "gpuPools[0].image")
    assert "have no oci-oke-node-all-1.34.3: nodes join if the image carries it" in finding.value
    assert finding.remedy.endswith("v1.34.1, v1.34.2, v1.34.20.")


def test_node_images_other_than_ubuntu_need_no_oke_node_package():
    image = {"operatingSystem": "Oracle Linux", "operatingSystemVersion": "8"}
    answers = {f"compute /images/{IMAGE}": {**ANSWERS[f"compute /images/{IMAGE}"], **image}}
    assert not [item for item in look(answers) if item.check == "packages"]


def test_an_oke_node_package_in_one_of_the_package_repositories_suffices():
    first, second = cloud_init().packages.repositories

    def read_second(uri: str) -> str:
        if uri.startswith(first):
            raise OciError(503, "", "out of order")
        return read_index(uri) if uri.startswith(second) else ""

    config = validate(created_stack(created_pool()))
    findings = preflight(FakeOci(ANSWERS), config, read_text=read_second)
    assert only("packages", findings).verdict is Verdict.FINE


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("Oracle-Linux-8.10-2026.03.31-0-OKE-1.34.2-1100", ["CVE-2026-31431"]),
        ("Oracle-Linux-8.10-2026.04.30-1-OKE-1.34.2-1200", []),
        ("Canonical-Ubuntu-24.04-2026.02.28-0-KERNEL-ORACLE-6.8-AMD-ROCM-724-2026.07.13-0", []),
        ("own-image", []),
    ],
)
def test_a_node_image_older_than_known_kernel_fixes_is_reported(name: str, faults: list[str]):
    image = {**ANSWERS[f"compute /images/{IMAGE}"], "displayName": name}
    findings = [item for item in look({f"compute /images/{IMAGE}": image}) if "nodes block" in item.value]
    assert [fault for item in findings for fault in faults if fault in item.value] == faults
    assert {item.verdict for item in findings} <= {Verdict.UNKNOWN}
    assert len(findings) == len(faults)


def test_with_an_unreachable_package_repository_the_check_of_packages_is_unknown():
    def fail(uri: str) -> str:
        raise OciError(404, "", f"{uri} is answered with 404")

    finding = only("packages", preflight(FakeOci(ANSWERS), validate(created_stack()), read_text=fail))
    assert finding.verdict is Verdict.UNKNOWN


def test_a_kubernetes_version_that_oke_does_not_offer_is_a_problem():
    finding = only("versions", look({"containerengine /clusterOptions/all": {"kubernetesVersions": ["v1.35.1"]}}))
    assert (finding.verdict, finding.remedy) == (Verdict.PROBLEM, "One of v1.35.1")


@pytest.mark.parametrize(
    ("nodes", "verdict"),
    [("v1.31.1", Verdict.FINE), ("v1.30.1", Verdict.PROBLEM), ("v1.35.0", Verdict.PROBLEM)],
)
def test_nodes_may_be_three_minor_versions_older_and_never_newer(nodes: str, verdict: Verdict):
    findings = [item for item in look(kubernetesVersion=nodes) if item.path == "gpuPools[0].kubernetesVersion"]
    assert [item.verdict for item in findings] == [verdict]


def test_an_existing_network_must_not_overlap_the_rdma_ranges():
    ocid = "ocid1.vcn.oc1.iad.v"
    answers = {f"compute /vcns/{ocid}": {"cidrBlocks": ["10.0.0.0/16", "10.224.8.0/24"]}}
    finding = only("network", look(answers, cluster={"network": {"vcnId": ocid, "cidr": "10.0.0.0/16"}}))
    assert finding.verdict is Verdict.PROBLEM
    assert "10.224.8.0/24 overlaps 10.224.0.0/12" in finding.value


def test_iam_permissions_that_an_administrator_grants_are_checked():
    granted = [
        {
            "statements": [
                "Allow any-user to {COMPUTE_CLUSTER_LAUNCH_INSTANCE}  in compartment x where a = 'b'",
                "allow any-user to {INSTANCE_IMAGE_INSPECT, INSTANCE_IMAGE_READ} in tenancy",
            ]
        }
    ]
    fine = look({"identity /policies": granted}, cluster={"iam": {"create": False}})
    by_need = {f.value.split(":")[0]: f.verdict for f in fine if f.check == "policies"}
    assert by_need["managed-compute-cluster"] is Verdict.FINE
    missing = look({"identity /policies": []}, cluster={"iam": {"create": False}})
    finding = next(f for f in missing if "managed-compute-cluster" in f.value)
    assert finding.verdict is Verdict.PROBLEM
    assert "COMPUTE_CLUSTER_LAUNCH_INSTANCE" in finding.remedy


def test_an_existing_cluster_must_be_active():
    config = validate(stack(cluster=existing_cluster(identifier=CLUSTER)))
    answers = {"name": "prod", "lifecycleState": "DELETED", "kubernetesVersion": "v1.34.2", "type": "ENHANCED_CLUSTER"}
    (finding,) = preflight(FakeOci({f"containerengine /clusters/{CLUSTER}": answers}), config)
    assert (finding.path, finding.verdict) == ("cluster.identifier", Verdict.PROBLEM)


ROCM = "Canonical-Ubuntu-24.04-2026.02.28-0-KERNEL-ORACLE-6.8-DOCA-OFED-3.4.0-AMD-ROCM-724-2026.07.13-0"
MD5 = "md5:" + "ab" * 16
LINK = "https://objectstorage.example/p/secret/o/image.oci"


def look_at_import(file: StoredFile | OciError, *images: dict[str, Any]) -> Finding:
    def read(link: str) -> StoredFile:
        assert link == LINK
        if isinstance(file, OciError):
            raise file
        return file

    pool = created_pool(image={"import": {"name": ROCM, "uri": LINK, "checksum": MD5}})
    oci = FakeOci({**ANSWERS, "compute /images": list(images)})
    return only("image", preflight(oci, validate(created_stack(pool)), read, read_text=read_index))


OTHER = "md5:" + "cd" * 16


@pytest.mark.parametrize(
    ("file", "verdict", "said"),
    [
        (StoredFile(2**34, (MD5,)), Verdict.FINE, ["16.0 GiB"]),
        (StoredFile(1, (OTHER,)), Verdict.PROBLEM, [OTHER, MD5]),
        (StoredFile(1, ("sha256:" + "0" * 64,)), Verdict.UNKNOWN, []),
        (StoredFile(1, ()), Verdict.UNKNOWN, []),
        (OciError(404, "", "the image's link is answered with 404"), Verdict.UNKNOWN, []),
    ],
    ids=["the stack file's checksum", "another checksum", "another algorithm", "no checksum", "expired link"],
)
def test_the_file_behind_an_image_link_is_judged_by_the_checksum_in_the_stack_file(
    file: StoredFile | OciError, verdict: Verdict, said: list[str]
):
    finding = look_at_import(file)
    part = "" if isinstance(file, OciError) else ".import.checksum"
    assert (finding.verdict, finding.path) == (verdict, f"gpuPools[0].image{part}")
    assert all(text in finding.value for text in said)


@pytest.mark.parametrize(("state", "verdict"), [("AVAILABLE", Verdict.FINE), ("IMPORTING", Verdict.PROBLEM)])
def test_preflight_finds_an_imported_image_by_its_checksum_tag(state: str, verdict: Verdict):
    tagged = {"displayName": "ubuntu", "lifecycleState": state, "freeformTags": {"llmd-oke-checksum": MD5}}
    finding = look_at_import(OciError(404, "", "expired"), {"displayName": "other"}, tagged)
    assert finding.verdict is verdict
