import pulumi
import pytest
from llmd_oke.program import declare
from llmd_oke.testing import Rendered, render, without_hash
from render_support import pod, selects
from stack_files import existing_pool, plan, stack

PREFILL, DECODE = "gpt-oss-120b-prefill", "gpt-oss-120b-decode"


def selector(rendered: Rendered, name: str) -> object:
    return rendered.kubernetes("Deployment", name)["spec"]["selector"]


def names(rendered: Rendered) -> set[tuple[str, str]]:
    """But for the benchmark's program, whose name says what is asked of it."""
    objects = (m for m in rendered.manifests() if "request.json" not in m.get("data", {}))
    return {(m["kind"], m["metadata"]["name"]) for m in objects}


def of_units(rendered: Rendered) -> set[tuple[str, str]]:
    """Objects of units and their routers, and what of the front door leads to them."""
    shared = {"gpt-oss-120b", "gpt-oss-120b-front-door", "gpt-oss-120b-smoke"}
    return {(kind, name) for kind, name in names(rendered) if name.startswith("gpt-oss-120b-") and name not in shared}


TIGHT = {"gpuPools": [existing_pool(size=3)]}
"""Room for the 16 GPUs of the rehearsal's unit, and not for a second one."""

CHANGES = {
    "image": {"stack": {"override": {"vllmImage": "docker.io/vllm/vllm-openai-rocm:v0.27.1"}}},
    "block size": {"engine": {"blockSize": 64}},
    "topology": {"topology": "8p-tp1-2d-tp4"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_with_free_gpus_new_servers_start_beside_the_old_ones(varied, change):
    """Not one name in common: the engine makes all of the new unit before it takes the old one away."""
    old, new = of_units(varied()), of_units(varied(**change))
    assert old.isdisjoint(new)
    assert {without_hash(name) for _, name in old} == {without_hash(name) for _, name in new}


def test_a_models_service_keeps_its_name_and_selects_the_envoys_of_new_servers(varied):
    old, new = varied(), varied(engine={"blockSize": 64})
    (before,), (after,) = ({s["spec"]["selector"]["llmd-oke/front-door"]} for s in map(address, (old, new)))
    assert before != after
    assert address(old)["metadata"] == address(new)["metadata"]


def address(rendered: Rendered):
    return rendered.kubernetes("Service", "gpt-oss-120b")


def test_without_free_gpus_changed_servers_keep_names_and_are_deleted_first(varied):
    old, new = varied(stack=TIGHT), varied(stack=TIGHT, engine={"blockSize": 64})
    assert names(old) == names(new)
    for deployment in (PREFILL, DECODE):
        assert selector(old, deployment) == selector(new, deployment)
        resource = new.kubernetes_resource("Deployment", deployment)
        assert 'metadata.labels["llmd-oke/version"]' in resource.replace_on_changes
        assert resource.delete_before_replace


@pytest.mark.parametrize("room", [{}, TIGHT], ids=["beside", "tight"])
def test_an_inferencepool_selects_servers_of_one_version_only(varied, room):
    old, new = varied(stack=room), varied(stack=room, engine={"blockSize": 64})
    for rendered, other in ((old, new), (new, old)):
        chosen = rendered.kubernetes("InferencePool", "gpt-oss-120b")["spec"]["selector"]["matchLabels"]
        for role in (PREFILL, DECODE):
            assert selects(chosen, pod(rendered, role)["metadata"]["labels"])
            assert not selects(chosen, pod(other, role)["metadata"]["labels"])


def test_settings_that_prefill_and_decode_need_not_share_change_no_deployment_name(varied):
    before = varied()
    after = varied(engine={"maxNumSeqs": 128, "env": {"VLLM_LOGGING_LEVEL": "DEBUG"}})
    assert names(before) == names(after)
    assert pod(before, DECODE) != pod(after, DECODE)


COPIES = {"stack": TIGHT, "copies": 2, "topology": "4p-tp1-2d-tp2"}


def waited_for(rendered: Rendered, kind: str) -> list[bool]:
    """Tell of each unit whether that part of it waits for servers of another unit."""
    parts = rendered.of_type(f"llmd-oke:index:{kind}")
    return [any("Unit$kubernetes:apps/v1:Deployment" in urn for urn in part.depends_on) for part in parts]


def test_without_free_gpus_copies_of_a_model_are_updated_one_after_the_other(varied, monkeypatch):
    """The pool of a unit turns to its new servers together with them."""
    served = {"outputs": {"endpoints": {"gpt-oss-120b": "http://gpt-oss-120b.llm-d.svc.cluster.local"}}}
    monkeypatch.setitem(declare.COMPUTED, "pulumi:pulumi:StackReference", served)
    again = varied(**COPIES, engine={"blockSize": 64})
    assert waited_for(again, "PrefillDecodeUnit") == [False, True]
    assert waited_for(again, "Router") == [False, True]


def test_copies_of_a_model_in_a_new_stack_are_created_in_parallel(varied):
    new = varied(**COPIES)
    assert waited_for(new, "PrefillDecodeUnit") == waited_for(new, "Router") == [False, False]


def test_servers_of_another_size_are_created_after_the_old_ones_are_deleted(varied, guide):
    for rendered in (varied(stack=TIGHT), guide):
        resource = rendered.kubernetes_resource("Deployment", DECODE)
        assert 'metadata.labels["llmd-oke/tensor-parallel-size"]' in resource.replace_on_changes
        assert resource.delete_before_replace

    def size(stack):
        return stack.kubernetes("Deployment", DECODE)["metadata"]["labels"]["llmd-oke/tensor-parallel-size"]

    assert (size(varied(stack=TIGHT)), size(guide)) == ("2", "4")
    assert selector(varied(stack=TIGHT), DECODE) == selector(guide, DECODE)


def test_another_number_or_size_of_decode_servers_leaves_prefill_pods_alone(varied):
    before, after = varied(stack=TIGHT), varied(stack=TIGHT, topology="8p-tp1-2d-tp4")
    assert pod(before, PREFILL) == pod(after, PREFILL)


def test_another_number_of_servers_changes_only_replicas(varied):
    before, after = (
        varied(topology=topology).kubernetes("Deployment", DECODE)["spec"]
        for topology in ("8p-tp1-4d-tp2", "8p-tp1-5d-tp2")
    )
    assert (before["replicas"], after["replicas"]) == (4, 5)
    assert before["template"] == after["template"]
    assert before["selector"] == after["selector"]


def test_on_full_nodes_a_rolling_update_deletes_a_pod_before_it_creates_the_next(guide, rehearsal):
    assert guide.kubernetes("Deployment", DECODE)["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 0,
        "maxUnavailable": 1,
    }
    spare = rehearsal.kubernetes("Deployment", DECODE)["spec"]["strategy"]["rollingUpdate"]
    assert spare["maxSurge"] > 0
    assert spare["maxUnavailable"] == 0


def test_another_picker_config_restarts_only_the_router(varied):
    before, after = varied(), varied(router={"nonCachedTokens": 512})
    assert pod(before, "gpt-oss-120b-epp") != pod(after, "gpt-oss-120b-epp")
    assert pod(before, DECODE) == pod(after, DECODE)
    assert names(before) == names(after)


def test_the_name_of_a_servers_priority_class_ends_with_its_value(rehearsal):
    for manifest in [m for m in rehearsal.manifests() if m["kind"] == "PriorityClass"]:
        assert manifest["metadata"]["name"].endswith(f"-{manifest['value']}")


def test_the_log_of_an_update_says_how_each_models_servers_are_replaced(monkeypatch):
    told = list[str]()
    monkeypatch.setattr(pulumi.log, "info", told.append)
    render(stack())
    assert f"gpt-oss-120b: {plan().models[0].update_note}" in told


def test_a_router_with_one_pod_is_deleted_before_its_successor_is_created(varied):
    older = varied(stack={"override": {"router": "llm-d-0.6.0"}})
    spec = older.kubernetes("Deployment", "gpt-oss-120b-epp")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
