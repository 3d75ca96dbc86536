"""Servers that come and go with the load: their ScaledObjects, and Deployments whose number is left alone."""

import pytest
from llmd_oke.catalogue.serving import scaling
from llmd_oke.testing import without_hash
from render_support import SHARED_DATA, validate_by_definition

PREFILL, DECODE = "gpt-oss-120b-prefill", "gpt-oss-120b-decode"
SCALING = {
    "prefill": {"minReplicas": 4, "maxReplicas": 16, "promptTokensPerS": 20000},
    "decode": {"minReplicas": 2, "maxReplicas": 8, "requests": 40, "kvCacheUsage": 0.8},
}


@pytest.fixture
def scaled(varied):
    """The rehearsal's stack with both roles scaled."""
    return varied(scaling=SCALING)


def spec(rendered, name):
    return rendered.kubernetes("ScaledObject", name)["spec"]


def triggers(rendered, name):
    return {trigger["name"]: trigger for trigger in spec(rendered, name)["triggers"]}


def test_scaledobjects_are_valid_by_their_crd(scaled):
    for name in (PREFILL, DECODE):
        definition = SHARED_DATA / "crds" / "keda.sh_scaledobjects.yaml"
        validate_by_definition(scaled.kubernetes("ScaledObject", name), definition)


def test_prefill_servers_also_scale_by_decode_load_in_the_proportion_of_the_topology(scaled):
    """8p-tp1-4d-tp2 has two prefill servers for each decode server that its load asks for."""
    other = triggers(scaled, PREFILL)["decode-requests"]["metadata"]
    assert other["threshold"] == "20"
    assert other["query"] == triggers(scaled, DECODE)["requests"]["metadata"]["query"]


def test_prefill_servers_that_alone_are_autoscaled_follow_only_their_own_load(varied):
    assert set(triggers(varied(scaling={"prefill": SCALING["prefill"]}), PREFILL)) == {"prompt-tokens-per-s"}


def test_waiting_prompts_add_to_the_load_that_prefill_servers_scale_by(scaled):
    """vLLM counts the tokens of a prompt once it is computed, so that a rate stops at what the servers do."""
    assert "vllm:num_requests_waiting" in triggers(scaled, PREFILL)["prompt-tokens-per-s"]["metadata"]["query"]


def test_scaling_queries_sum_over_the_servers_of_one_deployment(scaled):
    name = scaled.kubernetes("Deployment", DECODE)["metadata"]["name"]
    pods = f'{{namespace="llm-d",pod=~"{name}-[a-z0-9]+-[a-z0-9]+"}}'
    assert triggers(scaled, DECODE)["requests"]["metadata"]["query"] == (
        f"sum(vllm:num_requests_running{pods}) + sum(vllm:num_requests_waiting{pods})"
    )


def test_keda_triggers_do_not_take_missing_metrics_for_zero_load(scaled):
    """KEDA takes an empty answer for 0 unless it is told otherwise."""
    for name in (PREFILL, DECODE):
        for trigger in spec(scaled, name)["triggers"]:
            assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_the_address_of_prometheus_and_the_scaling_windows_can_be_configured(scaled, varied):
    other = varied(scaling={**SCALING, "prometheus": "http://here:9090", "scaleUpWindowS": 30, "scaleDownWindowS": 900})

    def told(rendered):
        behavior = spec(rendered, DECODE)["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        windows = [behavior[way]["stabilizationWindowSeconds"] for way in ("scaleUp", "scaleDown")]
        return [triggers(rendered, DECODE)["requests"]["metadata"]["serverAddress"], *windows]

    assert told(other) == ["http://here:9090", 30, 900]
    assert told(scaled) == [scaling().prometheus, 0, 300]


def test_servers_are_added_one_by_one_and_in_the_proportion_of_the_topology(scaled):
    for name, pods in ((PREFILL, 2), (DECODE, 1)):
        behavior = spec(scaled, name)["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior["scaleUp"]["policies"] == [{"type": "Pods", "value": pods, "periodSeconds": 180}]
        assert behavior["scaleDown"]["policies"] == [{"type": "Pods", "value": pods, "periodSeconds": 300}]


def test_updates_ignore_the_replicas_of_autoscaled_deployments(scaled):
    for name, start in ((PREFILL, 8), (DECODE, 4)):
        assert scaled.kubernetes("Deployment", name)["spec"]["replicas"] == start
        assert scaled.kubernetes_resource("Deployment", name).ignore_changes == ("spec.replicas",)


def test_updates_set_the_replicas_of_deployments_that_are_not_autoscaled(varied, rehearsal):
    one = varied(scaling={"prefill": SCALING["prefill"]})
    assert one.kubernetes_resource("Deployment", DECODE).ignore_changes == ()
    assert rehearsal.kubernetes_resource("Deployment", PREFILL).ignore_changes == ()
    names = [m["metadata"]["name"] for m in one.manifests() if m["kind"] == "ScaledObject"]
    assert [without_hash(name) for name in names] == [PREFILL]


def test_each_copy_of_a_model_is_autoscaled_by_its_own_scaledobjects(varied):
    two = varied(copies=2, scaling=SCALING)
    names = {without_hash(m["metadata"]["name"]) for m in two.manifests() if m["kind"] == "ScaledObject"}
    assert names == {f"gpt-oss-120b-{copy}-{role}" for copy in (0, 1) for role in ("prefill", "decode")}


def test_scaledobjects_are_created_after_the_deployments(scaled):
    (component,) = scaled.of_type("llmd-oke:index:ModelScaling")
    deployments = {scaled.kubernetes_resource("Deployment", name).urn for name in (PREFILL, DECODE)}
    assert deployments <= set(component.depends_on)


def test_autoscaling_settings_change_no_pod(scaled, rehearsal):
    for name in (PREFILL, DECODE):
        assert (
            scaled.kubernetes("Deployment", name)["spec"]["template"]
            == rehearsal.kubernetes("Deployment", name)["spec"]["template"]
        )
