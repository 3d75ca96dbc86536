"""What an update changes, and what it must not."""

from llmd_oke.testing import Rendered
from render_support import pod, vllm

PREFILL, DECODE = "gpt-oss-120b-prefill", "gpt-oss-120b-decode"


def selector(rendered: Rendered, name: str) -> object:
    return rendered.kubernetes("Deployment", name)["spec"]["selector"]


def names(rendered: Rendered) -> set[tuple[str, str]]:
    """But for the benchmark's program, whose name says what is asked of it."""
    objects = (m for m in rendered.manifests() if "request.json" not in m.get("data", {}))
    return {(m["kind"], m["metadata"]["name"]) for m in objects}


def test_another_release_changes_images_but_no_selector_and_no_name(varied):
    old, new = varied(), varied(stack={"release": "llm-d-0.7.0"})
    assert vllm(old, DECODE)["image"] != vllm(new, DECODE)["image"]
    for deployment in (PREFILL, DECODE, "gpt-oss-120b-epp"):
        assert selector(old, deployment) == selector(new, deployment)
    assert names(old) == names(new)


def test_servers_of_another_size_replace_the_old_ones_which_go_first(rehearsal, guide):
    for stack in (rehearsal, guide):
        resource = stack.kubernetes_resource("Deployment", DECODE)
        assert resource.replace_on_changes == ('metadata.labels["llmd-oke/tensor-parallel-size"]',)
        assert resource.delete_before_replace

    def size(stack):
        return stack.kubernetes("Deployment", DECODE)["metadata"]["labels"]["llmd-oke/tensor-parallel-size"]

    assert (size(rehearsal), size(guide)) == ("2", "4")
    assert selector(rehearsal, DECODE) == selector(guide, DECODE)


def test_another_number_or_size_of_decode_servers_leaves_prefill_pods_alone(varied):
    before, after = varied(), varied(topology="8p-tp1-2d-tp4")
    assert pod(before, PREFILL) == pod(after, PREFILL)


def test_another_number_of_servers_changes_nothing_but_the_number(varied):
    before = varied(topology="8p-tp1-4d-tp2").kubernetes("Deployment", DECODE)
    after = varied(topology="8p-tp1-5d-tp2").kubernetes("Deployment", DECODE)
    assert after["spec"].pop("replicas") == 5
    assert before["spec"].pop("replicas") == 4
    assert before["spec"]["template"] == after["spec"]["template"]
    assert before["spec"]["selector"] == after["spec"]["selector"]


def test_full_nodes_give_a_pod_up_before_its_successor_comes(guide, rehearsal):
    assert guide.kubernetes("Deployment", DECODE)["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 0,
        "maxUnavailable": 1,
    }
    spare = rehearsal.kubernetes("Deployment", DECODE)["spec"]["strategy"]["rollingUpdate"]
    assert spare["maxSurge"] > 0
    assert spare["maxUnavailable"] == 0


def test_another_picker_config_rolls_the_router_and_nothing_else(varied):
    before, after = varied(), varied(router={"nonCachedTokens": 512})
    assert pod(before, "gpt-oss-120b-epp") != pod(after, "gpt-oss-120b-epp")
    assert pod(before, DECODE) == pod(after, DECODE)
    assert names(before) == names(after)


def test_a_priority_class_is_named_after_its_value_which_cant_change(rehearsal):
    for manifest in [m for m in rehearsal.manifests() if m["kind"] == "PriorityClass"]:
        assert manifest["metadata"]["name"].endswith(f"-{manifest['value']}")


def test_the_router_is_one_pod_that_goes_before_its_successor_comes(rehearsal):
    spec = rehearsal.kubernetes("Deployment", "gpt-oss-120b-epp")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
