import pytest
from llmd_rehearsal.kubernetes_plugin import readiness
from llmd_rehearsal.kubernetes_plugin.readiness import ReadinessEvidence


def deployment(
    revision="1", generation=1, observed=1, replicas=2, updated=2, available="True", progress="NewReplicaSetAvailable"
):
    return {
        "metadata": {
            "name": "web", "uid": "d", "generation": generation,
            "annotations": {"deployment.kubernetes.io/revision": revision},
        },
        "spec": {"replicas": replicas},
        "status": {
            "observedGeneration": observed,
            "updatedReplicas": updated,
            "conditions": [
                {"type": "Available", "status": available, "reason": "R", "message": "m"},
                {"type": "Progressing", "status": "True", "reason": progress, "message": "m"},
            ],
        },
    }  # fmt: skip


def replica_set(revision="1", ready=2, desired=2):
    return {
        "metadata": {
            "uid": f"rs{revision}",
            "ownerReferences": [{"uid": "d"}],
            "annotations": {"deployment.kubernetes.io/revision": revision},
        },
        "spec": {"replicas": desired},
        "status": {"readyReplicas": ready},
    }


def readiness_of(live, *replica_sets):
    return readiness.deployment(ReadinessEvidence(live, related={"replicasets": replica_sets}))


def test_a_deployment_is_ready_when_available_and_its_newest_replica_set_is():
    assert readiness_of(deployment(), replica_set()).ready


@pytest.mark.parametrize(
    "live",
    [
        pytest.param(deployment(generation=2), id="the controller hasn't seen the change"),
        pytest.param(deployment(available="False"), id="not available"),
        pytest.param(deployment(revision="2", progress="ReplicaSetUpdated"), id="still rolling"),
        pytest.param(deployment(updated=0), id="scaled, not rolled yet"),
    ],
)
def test_a_deployment_in_the_middle_of_a_rollout_is_not_ready(live):
    assert not readiness_of(live, replica_set(), replica_set("2")).ready


def test_the_status_of_a_deployment_names_its_unready_pods_and_the_reason():
    waiting = {"name": "c", "ready": False, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}
    pod = {
        "metadata": {"name": "p", "namespace": "n", "ownerReferences": [{"uid": "rs1"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "False", "reason": "X", "message": "unready"}],
            "containerStatuses": [waiting],
        },
    }
    related = {"replicasets": [replica_set(ready=0)], "pods": [pod]}

    verdict = readiness.deployment(ReadinessEvidence(deployment(available="False"), related=related))

    assert verdict.reasons == (
        "[R] m",
        "Minimum number of live Pods was not attained",
        "[Pod n/p]: unready[CrashLoopBackOff] back-off",
    )


def test_a_deployment_whose_volume_claim_is_not_bound_is_not_ready():
    live = deployment()
    live["spec"]["template"] = {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}}
    pending = {"metadata": {"name": "c"}, "status": {"phase": "Pending"}}
    related = {"replicasets": [replica_set()], "persistentvolumeclaims": [pending]}
    verdict = readiness.deployment(ReadinessEvidence(live, related=related))
    assert not verdict.ready
    assert verdict.reasons == ('Failed to bind PersistentVolumeClaim(s): "c"',)


def service(**spec):
    return {"metadata": {"name": "s"}, "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1", **spec}}


def endpoints(**subset):
    return {"endpoints": [{"metadata": {"name": "s"}, "subsets": [subset]}]}


@pytest.mark.parametrize(
    "live",
    [service(), service(selector={"a": "b"}, clusterIP="None"), service(selector={"a": "b"}, type="ExternalName")],
)
def test_a_service_without_endpoints_of_its_own_is_ready_at_once(live):
    assert readiness.service(ReadinessEvidence(live)).ready


def test_a_service_with_a_selector_is_ready_once_its_endpoints_are():
    live, related = service(selector={"a": "b"}), endpoints(addresses=[{"ip": "1"}])
    early = readiness.service(ReadinessEvidence(live, related=related, quiet_s=4, settle_s=10))
    late = readiness.service(ReadinessEvidence(live, related=related, quiet_s=10, settle_s=10))
    assert (early.ready, early.look_again_s) == (False, 6)
    assert late.ready


def test_a_service_with_unready_pods_never_becomes_ready():
    live, related = service(selector={"a": "b"}), endpoints(notReadyAddresses=[{"ip": "1"}])
    verdict = readiness.service(ReadinessEvidence(live, related=related, quiet_s=99, settle_s=10))
    assert not verdict.ready
    assert not verdict.passes_at_limit
    assert "does not target any Pods" in verdict.reasons[0]


def test_a_service_of_type_loadbalancer_is_ready_once_it_has_an_address():
    live = service(selector={"a": "b"}, type="LoadBalancer")
    related = endpoints(addresses=[{"ip": "1"}])
    placed = {**live, "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}
    assert not readiness.service(ReadinessEvidence(live, related=related, quiet_s=99)).ready
    assert readiness.service(ReadinessEvidence(placed, related=related, quiet_s=99)).ready


def job(*entries):
    return {"metadata": {"uid": "j"}, "status": {"startTime": "t", "conditions": list(entries)}}


def test_a_job_is_ready_when_complete_and_failed_at_its_backoff_limit():
    complete = {"type": "Complete", "status": "True"}
    gave_up = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "m"}
    assert readiness.job(ReadinessEvidence(job(complete))).ready
    assert not readiness.job(ReadinessEvidence(job())).ready
    assert readiness.job(ReadinessEvidence(job(gave_up))).failed
    assert readiness.job(ReadinessEvidence(job(gave_up))).reasons == ("[BackoffLimitExceeded] m",)


def claim(phase):
    return {"metadata": {"name": "c"}, "spec": {"storageClassName": "sc"}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("mode", "previous", "phase", "ready"),
    [
        ("WaitForFirstConsumer", None, "Pending", True),
        ("WaitForFirstConsumer", None, "Bound", False),
        ("WaitForFirstConsumer", claim("Bound"), "Bound", True),
        ("Immediate", None, "Pending", False),
        ("Immediate", None, "Bound", True),
    ],
)
def test_a_volume_claim_is_ready_by_its_storage_class_or_as_it_was_before_an_update(mode, previous, phase, ready):
    related = {"storageclasses": [{"metadata": {"name": "sc"}, "volumeBindingMode": mode}]}
    assert readiness.claim(ReadinessEvidence(claim(phase), previous=previous, related=related)).ready is ready


def test_a_stateful_set_is_ready_when_all_replicas_are_of_the_newest_revision():
    status = {
        "observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "currentReplicas": 2,
        "currentRevision": "a", "updateRevision": "a",
    }  # fmt: skip
    live = {"metadata": {"generation": 1, "uid": "s"}, "spec": {"replicas": 2}, "status": status}
    rolling = {**live, "status": {**status, "updateRevision": "b"}}
    assert readiness.stateful_set(ReadinessEvidence(live)).ready
    reason = readiness.stateful_set(ReadinessEvidence(rolling)).reasons[-1]
    assert reason == 'StatefulSet controller failed to advance from revision "a" to revision "b"'


def test_a_daemon_set_is_ready_when_every_node_has_its_pod():
    scheduled = {f"{which}NumberScheduled": 3 for which in ("desired", "current", "updated")}
    status = {"observedGeneration": 1, **scheduled, "numberAvailable": 3, "numberReady": 3}
    live = {"metadata": {"generation": 1, "uid": "d"}, "status": status}
    lacking = {**live, "status": {**status, "numberReady": 2}}
    assert readiness.daemon_set(ReadinessEvidence(live)).ready
    reasons = readiness.daemon_set(ReadinessEvidence(lacking)).reasons
    assert reasons == ("2 out of 3 replicas succeeded readiness checks",)


def available_set(status="True", generation=2, observed=2):
    seen = {"type": "Available", "status": status, "observedGeneration": observed}
    return ReadinessEvidence({"metadata": {"name": "set", "generation": generation}, "status": {"conditions": [seen]}})


@pytest.mark.parametrize("expression", ["condition=Available", "condition=Available=True", "Available"])
def test_a_wait_for_annotation_is_fulfilled_when_the_status_has_its_condition(expression):
    assert readiness.awaited_condition(expression).condition(available_set()).ready


@pytest.mark.parametrize(
    "observation",
    [
        pytest.param(available_set(observed=1), id="the controller hasn't seen the change"),
        pytest.param(available_set(status="False"), id="not available"),
        pytest.param(ReadinessEvidence({"metadata": {"name": "set", "generation": 1}}), id="no status yet"),
    ],
)
def test_a_wait_for_annotation_is_unfulfilled_while_its_condition_is_absent_or_false(observation):
    judged = readiness.awaited_condition("condition=Available").condition(observation)
    assert not judged.ready
    assert "(want True)" in judged.reasons[0]
