"""LoRA adapters: how servers, the model cache, the picker and the front door know them, and what they replace."""

import json

import pytest
from llmd_oke.testing import Rendered
from render_support import env, pod, vllm
from stack_files import model, stack

SQL = {"name": "sql", "repository": "acme/llama-sql", "revision": "a" * 40}
NEXT = {**SQL, "revision": "b" * 40}
LEGAL = {"name": "legal", "repository": "acme/llama-legal", "revision": "c" * 40}
LLAMA = "llama-3-1-8b-instruct"


@pytest.fixture
def adapted(rendered):
    def render(*adapters: dict, topology: str = "2p-tp1-1d-tp2", **changes) -> Rendered:
        entry = model(
            topology,
            model="llama-3.1-8b-instruct",
            engine={"adapters": {"slots": 2, "maxRank": 32}},
            adapters=list(adapters),
        )
        return rendered(stack(entry, nodes=1, storage={"modelCache": {"kind": "node-disk"}}, frontDoor={}, **changes))

    return render


def deployments(stack: Rendered) -> dict:
    names = [f"{LLAMA}-{role}" for role in ("prefill", "decode")]
    return {name: stack.kubernetes("Deployment", name)["spec"]["template"] for name in names}


def rules(stack: Rendered) -> dict[str, str]:
    spec = stack.kubernetes("InferenceModelRewrite", f"{LLAMA}-adapters")["spec"]
    assert spec["poolRef"]["name"] == stack.kubernetes("InferencePool", LLAMA)["metadata"]["name"]
    return {rule["matches"][0]["model"]["value"]: rule["targets"][0]["modelRewrite"] for rule in spec["rules"]}


def test_servers_are_started_with_adapter_slots_and_without_any_adapters_name(adapted):
    container = vllm(adapted(SQL), f"{LLAMA}-decode")
    assert {"--enable-lora", "--max-loras=2", "--max-lora-rank=32"} <= set(container["args"])
    assert not [word for word in container["args"] if "sql" in word]
    assert env(container)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert env(container)["VLLM_LORA_RESOLVER_CACHE_DIR"] == f"/model-cache/adapters/{LLAMA}-adapters@main"


def test_changing_adapters_or_their_revisions_changes_no_server_pod(adapted):
    before = deployments(adapted(SQL))
    assert deployments(adapted(NEXT)) == before
    assert deployments(adapted(SQL, LEGAL)) == before
    assert deployments(adapted()) == before


def test_another_adapter_revision_changes_the_model_name_that_the_picker_writes(adapted):
    assert rules(adapted(SQL, LEGAL)) == {"sql": "sql-aaaaaaaaaaaa", "legal": "legal-cccccccccccc"}
    assert rules(adapted(NEXT, LEGAL)) == {"sql": "sql-bbbbbbbbbbbb", "legal": "legal-cccccccccccc"}


def test_a_stack_without_adapters_declares_no_inferencemodelrewrite(adapted):
    assert "InferenceModelRewrite" not in {item["kind"] for item in adapted().manifests()}


def test_the_pre_warm_job_and_later_pods_download_the_same_adapters(adapted):
    rendered = adapted(SQL)
    job = rendered.kubernetes("Job", f"prewarm-{LLAMA}-adapters")["spec"]["template"]["spec"]
    (argument,) = [word for word in job["containers"][0]["args"] if word.startswith("--adapters=")]
    listed = rendered.kubernetes("ConfigMap", f"{LLAMA}-adapters")["data"]["adapters.json"]
    assert argument == f"--adapters={listed}"
    assert json.loads(listed) == {
        "name": f"{LLAMA}-adapters",
        "maxRank": 32,
        "adapters": [{"servedName": "sql-aaaaaaaaaaaa", "repository": "acme/llama-sql", "revision": "a" * 40}],
    }
    first = pod(rendered, f"{LLAMA}-prefill")["spec"]["initContainers"]
    arguments = [word for container in first for word in container["args"]]
    assert "--adapters=@/opt/llmd-oke/adapters/adapters.json" in arguments


def test_inferencemodelrewrites_of_adapters_wait_for_crds_the_download_and_servers(adapted):
    rendered = adapted(SQL)
    (names,) = rendered.of_type("llmd-oke:index:AdapterNames")
    needed = {urn.split("::")[-2].split("$")[-1] for urn in names.depends_on}
    definition = "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition"
    assert {definition, "kubernetes:apps/v1:Deployment", "kubernetes:batch/v1:Job"} <= needed


def test_the_front_door_lists_adapters_and_routes_them_to_their_model(adapted):
    rendered = adapted(SQL)
    (text,) = [
        text
        for item in rendered.manifests()
        for text in (item.get("data") or {}).values()
        if "front-door" in item["metadata"]["name"] and '"listeners"' in text
    ]
    assert '\\"id\\": \\"sql\\"' in text
    assert '"exact": "sql"' in text.replace('"exact":"sql"', '"exact": "sql"')
