"""Changes by hand in words: which object, which field, by which field manager, what it is and what it will be."""

import json
from typing import Any

import pytest
from llmd_oke.operations.drift import drift_of_preview, drift_of_refresh, to_read
from llmd_oke.operations.previews import ResourceChange, errors_of_events, of_events
from previews_for_tests import urn

DEPLOYMENT = "kubernetes:apps/v1:Deployment"
TAKEN_BACK = "the update makes it what the stack file says"
OURS = "pulumi-kubernetes-1a2b3c4d"


def live(obj: dict[str, Any], **managers: dict[str, Any]) -> dict[str, Any]:
    """A live object whose fields these managers have set; `_` in their names stands for a hyphen."""
    entries = [
        {"manager": name.replace("_", "-"), "operation": "Update", "fieldsV1": fields}
        for name, fields in managers.items()
    ]
    return {**obj, "metadata": {**obj.get("metadata", {}), "managedFields": entries}, "__fieldManager": OURS}


def changed(paths: tuple[str, ...], was: dict[str, Any], now: dict[str, Any], there: dict[str, Any]) -> ResourceChange:
    return ResourceChange("update", urn(DEPLOYMENT, "d"), old=was, new=now, new_outputs=there, changed=paths)


def containers(image: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": image}]}}


def test_drift_that_needs_a_replacement_is_not_said_to_be_reverted():
    subnet = urn("oci:Core/subnet:Subnet", "workers")
    was, now = {"prohibitPublicIpOnVnic": True}, {"prohibitPublicIpOnVnic": False}
    paths = ("prohibitPublicIpOnVnic",)
    (drift,) = drift_of_refresh(
        [ResourceChange("update", subnet, old=was, new=now, changed=paths, replaced_by=paths)], objects_only=False
    )
    assert str(drift) == (
        "Subnet workers: prohibitPublicIpOnVnic was True and is False; an update after `pulumi refresh` would replace"
        " it: change it back where it was changed"
    )
    assert to_read([drift]) == []


SECRET = {"data": {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "[secret]"}}
ARGS = {"spec": {"args": ["a"]}}, {"spec": {"args": ["b"]}}
LABELS = {"metadata": {"labels": {"a/b": "c"}}}, {"metadata": {}}


@pytest.mark.parametrize(
    ("path", "was", "now", "managers", "told"),
    [
        (
            *("spec.containers[1].image", containers("j"), containers("x")),
            {"kubectl_set": {"f:spec": {"f:containers": {'k:{"name":"b"}': {"f:image": {}}}}}},
            "spec.containers[1].image was 'j' and is 'x', set by kubectl-set",
        ),
        ("spec.args[0]", *ARGS, {"k9s": {"f:spec": {"f:args": {}}}}, "spec.args[0] was 'a' and is 'b', set by k9s"),
        ('metadata.labels["a/b"]', *LABELS, {}, "metadata.labels[\"a/b\"] was 'c' and is absent"),
        ("data.k", SECRET, SECRET, {}, "data.k was changed"),
    ],
    ids=["item of a list by its key", "whole list", "no owner", "secret"],
)
def test_drift_names_the_owner_of_a_field_and_shows_no_secret(
    path: str, was: dict[str, Any], now: dict[str, Any], managers: dict[str, Any], told: str
):
    (drift,) = drift_of_refresh([changed((path,), was, now, live(now, **managers))])
    assert str(drift) == f"Deployment d: {told}; {TAKEN_BACK}"


def test_drift_that_looks_like_autoscaling_says_how_to_ignore_replicas():
    now = {"spec": {"replicas": 5}}
    there = live(now, kube_controller_manager={"f:spec": {"f:replicas": {}}})
    (drift,) = drift_of_refresh([changed(("spec.replicas",), {"spec": {"replicas": 2}}, now, there)])
    assert "set by kube-controller-manager" in str(drift)
    assert "`scaling` would leave it to an autoscaler" in str(drift)


def test_a_field_that_others_added_is_found_in_outputs_and_reported_once():
    fields = {"f:metadata": {"f:annotations": {".": {}, "f:x/y": {}}}}
    there = live({"metadata": {"annotations": {"x/y": "z"}}}, kubectl_annotate=fields)
    new = ResourceChange("same", urn(DEPLOYMENT, "d"), new_outputs=there)
    (drift,) = drift_of_refresh([new])
    assert 'metadata.annotations["x/y"] was added by kubectl-annotate' in str(drift)
    assert to_read([drift]) == []
    assert drift_of_refresh([ResourceChange("same", new.urn, old_outputs=there, new_outputs=there)]) == []


@pytest.mark.parametrize("type_", ["kubernetes:helm.sh/v3:Release", "oci:Core/vcn:Vcn", "pulumi:providers:kubernetes"])
def test_only_kubernetes_objects_are_compared_with_the_cluster_for_drift(type_: str):
    assert drift_of_refresh([ResourceChange("delete", urn(type_, "d"))]) == []


POOL = "oci:ContainerEngine/nodePool:NodePool"


def test_drift_of_oci_resources_even_of_outputs_alone_is_reported_with_the_way_back():
    sized = ResourceChange(
        "update",
        urn(POOL, "mi300x"),
        old={"nodeConfigDetails": {"size": 9}},
        new={"nodeConfigDetails": {"size": 7}},
        changed=("nodeConfigDetails.size",),
    )
    changes = [sized, ResourceChange("delete", urn("oci:Core/subnet:Subnet", "pods"))]
    assert list(map(str, drift_of_refresh(changes, objects_only=False))) == [
        "NodePool mi300x: nodeConfigDetails.size was 9 and is 7; "
        "an update after `pulumi refresh` makes it what the stack file says",
        "Subnet pods is gone; an update after `pulumi refresh` makes it anew",
    ]
    inputs = {"name": "prod"}
    change = ResourceChange(
        "update", urn(POOL, "p"), inputs, inputs, {"name": "prod"}, {"name": "other"}, changed=("name",)
    )
    (drift,) = drift_of_refresh([change], objects_only=False)
    assert "name was 'prod' and is 'other'" in str(drift)


@pytest.mark.parametrize("type_", ["pulumi:providers:oci", "llmd-oke:index:GpuPool", "pulumi:pulumi:Stack"])
def test_providers_components_and_the_stack_itself_have_no_drift(type_: str):
    change = ResourceChange("update", urn(type_, "d"), {"a": 1}, {"a": 2}, changed=("a",))
    assert drift_of_refresh([change], objects_only=False) == []


def test_a_deleted_helm_release_is_drift_and_changed_values_of_one_are_not():
    release = urn("kubernetes:helm.sh/v3:Release", "operator")
    compared = ResourceChange("update", release, {"values": 1}, {"values": 2}, changed=("values",))
    (drift,) = drift_of_refresh([compared, ResourceChange("delete", release)], objects_only=False)
    assert str(drift) == "Release operator is gone; the update makes it anew"


def test_drift_lists_exactly_the_fields_that_others_changed():
    fields = {"f:spec": {"f:replicas": {}}}
    old, new = {"spec": {"replicas": 3, "paused": True}}, {"spec": {"replicas": 2, "paused": False}}
    change = ResourceChange(
        "update",
        urn(DEPLOYMENT, "d"),
        old=old,
        new=new,
        old_outputs=live(old, **{"kubectl": fields, OURS.replace("-", "_"): {"f:spec": {"f:paused": {}}}}),
        changed=("spec.replicas", "spec.paused"),
    )
    (drift,) = drift_of_preview([change])
    assert drift_of_preview([change], known_drifts=[drift]) == []
    assert str(drift) == "Deployment d: spec.replicas is 3, set by kubectl; the update makes it 2"


def test_of_a_refreshs_events_only_those_of_resources_and_of_errors_are_read():
    read = {"resOutputsEvent": {"metadata": {"op": "same", "urn": "u"}}}
    said = {"diagnosticEvent": {"severity": "error", "message": "the cluster does not answer\n"}}
    events = "\n".join(map(json.dumps, ({"preludeEvent": {}}, read, said)))
    assert of_events(events) == (ResourceChange("same", "u"),)
    assert errors_of_events(events) == ("the cluster does not answer",)
    assert errors_of_events("no stack named 'dev' found") == ()
