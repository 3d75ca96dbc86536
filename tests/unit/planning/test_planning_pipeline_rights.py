from collections.abc import Mapping
from typing import Any, get_args

import pytest
from llmd_oke.catalogue.cluster import image_names
from llmd_oke.catalogue.operations import StackFeature, pipeline_identities
from llmd_oke.config import validate
from llmd_oke.planning.pipeline_rights import pipeline_statements
from stack_files import COMPARTMENT, cluster_layer, created_pool, ocid, stack

KEY, ELSEWHERE = ocid("key"), ocid("compartment", "elsewhere")
FILE = "https://objectstorage.us-ashburn-1.oraclecloud.com/n/space/b/images/o/node.oci"
IMPORTED = {"import": {"name": image_names()[0], "uri": FILE, "checksum": "md5:" + "a" * 32}}

FEATURES: dict[StackFeature, dict[str, Any]] = {
    "rights": {},
    "lustre": {"storage": {"modelCache": {"kind": "lustre"}}},
    "keys": {"cluster": {"kmsKeyId": KEY}, "pool": {"bootVolumeKmsKeyId": ocid("key", "other")}},
    "defined-tags": {"tags": {"defined": {"Operations": {"CostCenter": "42"}, "Finance": {"Team": "a"}}}},
    "image-files": {"pool": {"image": IMPORTED}},
    "images-elsewhere": {"cluster": {"iam": {"imageCompartmentId": ELSEWHERE}}},
    "reservations": {"pool": {"capacityReservationId": ocid("capacityreservation")}},
    "network-elsewhere": {"cluster": {"network": {"compartmentId": ELSEWHERE}}},
    "budget": {"budget": {"monthlyAmount": 1, "recipients": ["ops@example.com"]}},
    "oci-alarms": {"ociMonitoring": {"alarms": {"recipients": ["ops@example.com"]}}},
    "oci-logs": {"ociMonitoring": {"logs": {}}},
    "oci-pod-logs": {"ociMonitoring": {"logs": {"pods": True}}},
}
DEPLOYS: dict[StackFeature, list[str]] = {
    "rights": ["manage policies in tenancy", "manage dynamic-groups in tenancy"],
    "lustre": [f"manage lustre-file-family in compartment id {COMPARTMENT}"],
    "keys": [
        f"use {what} in compartment id {COMPARTMENT} where target.key.id = '{key}'"
        for what in ("keys", "key-delegates")
        for key in (KEY, ocid("key", "other"))
    ],
    "defined-tags": [
        f"use tag-namespaces in tenancy where target.tag-namespace.name = '{space}'"
        for space in ("Operations", "Finance")
    ],
    "image-files": ["read objects in tenancy where target.bucket.name = 'images'"],
    "images-elsewhere": [f"read instance-images in compartment id {ELSEWHERE}"],
    "reservations": [f"use compute-capacity-reservations in compartment id {COMPARTMENT}"],
    "network-elsewhere": [f"manage virtual-network-family in compartment id {ELSEWHERE}"],
    "budget": ["manage usage-budgets in tenancy"],
    "oci-alarms": [
        f"{verb} in compartment id {COMPARTMENT}"
        for verb in ("manage alarms", "read metrics", "manage ons-topics", "manage ons-subscriptions")
    ],
    "oci-logs": [f"manage log-groups in compartment id {COMPARTMENT}"],
    "oci-pod-logs": [f"manage unified-configuration in compartment id {COMPARTMENT}"],
}
LOOKS: dict[StackFeature, list[str]] = {
    "lustre": [f"read lustre-file-family in compartment id {COMPARTMENT}"],
    "network-elsewhere": [f"read virtual-network-family in compartment id {ELSEWHERE}"],
    "budget": ["read usage-budgets in tenancy"],
    "oci-alarms": [
        f"read {what} in compartment id {COMPARTMENT}" for what in ("alarms", "ons-topics", "ons-subscriptions")
    ],
    "oci-logs": [f"read log-groups in compartment id {COMPARTMENT}"],
    "oci-pod-logs": [
        f"read {what} in compartment id {COMPARTMENT}" for what in ("log-groups", "unified-configuration")
    ],
}


def granted(identity: str, config: Mapping[str, Any]) -> list[str]:
    texts = pipeline_statements(pipeline_identities()[identity], validate(config), "ci")
    return [text.removeprefix("Allow group ci to ") for text in texts]


def stack_with(pool: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return cluster_layer(created_pool(**(pool or {})), **changes)


def test_the_tests_tables_have_every_stack_feature_that_needs_iam_permissions():
    assert set(FEATURES) == set(DEPLOYS) == set(get_args(StackFeature))


def test_the_deploying_identity_may_manage_what_its_stack_uses_and_no_more():
    without = granted("deploy", stack_with(cluster={"iam": {"create": False}}))
    for feature, rights in DEPLOYS.items():
        assert not set(rights) & set(without), feature
        assert set(rights) <= set(granted("deploy", stack_with(**FEATURES[feature]))), feature


@pytest.mark.parametrize("identity", ["drift", "preview"])
def test_read_only_identities_may_read_what_a_stack_uses(identity: str):
    usual = set(granted(identity, stack_with()))
    for feature, changes in FEATURES.items():
        more = set(granted(identity, stack_with(**changes))) - usual
        assert more == set(LOOKS.get(feature, ())), feature


def test_an_image_imported_by_a_secret_link_needs_no_permission_on_objects():
    linked = {"import": {key: value for key, value in IMPORTED["import"].items() if key != "uri"}}
    assert not [text for text in granted("deploy", stack_with(pool={"image": linked})) if "objects" in text]


@pytest.mark.parametrize(
    ("iam", "pool"),
    [({}, {}), ({"imageCompartmentId": ELSEWHERE}, {"image": IMPORTED})],
    ids=["images beside the cluster", "imported images"],
)
def test_images_that_the_stack_makes_or_finds_beside_it_need_no_permission(iam: dict[str, Any], pool: dict[str, Any]):
    texts = granted("deploy", stack_with(pool, cluster={"iam": iam}))
    assert not [text for text in texts if text.startswith("read instance-images")]


def test_the_deploying_identity_may_use_tag_namespaces_of_another_compartment():
    tags = {"defined": {"Operations": {"CostCenter": "42"}}, "namespaceCompartmentId": ELSEWHERE}
    texts = granted("deploy", stack_with(tags=tags))
    assert f"use tag-namespaces in compartment id {ELSEWHERE} where" in " ".join(texts)


def test_iam_statements_have_a_placeholder_for_an_existing_clusters_compartment():
    texts = granted("drift", stack())
    assert "read cluster-family in compartment id COMPARTMENT_OF_THE_CLUSTER" in texts
