"""A whole pre-warmed pod of a model server starts and serves where it can reach nothing."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_bench.deployment import Parallelism
from llmd_oke import catalogue
from llmd_oke.serving import bench_program, model_cache, units
from llmd_oke.serving.args import UnitArgs
from llmd_oke.serving.model_cache import ModelCacheArgs
from llmd_pods.prewarm.places import REHEARSED_VOCABULARY
from llmd_rehearsal.model_sources import vocabulary
from test_pd_sidecar import namespaces

pytestmark = pytest.mark.rehearsal

MODEL = "gpt-oss-120b"
CACHE: ModelCacheArgs = {
    "namespace": "n",
    "service_account": "s",
    "kind": "node-disk",
    "shape": "BM.GPU.MI300X.8",
    "nodes": 1,
    "models": [MODEL],
    "prewarm": {"source": "hugging-face"},
}
UNIT: UnitArgs = {
    "release": catalogue.default_release().name,
    "model": MODEL,
    "shape": "BM.GPU.MI300X.8",
    "namespace": "n",
    "service_account": "s",
    "model_cache": model_cache.mount(CACHE, MODEL, ""),
}
MISSING = {
    "hub/models--*/snapshots/*": "LocalEntryNotFoundError",
    "hub/models--*/snapshots/*/config.json": "No such file or directory: '/model-cache/hub/models--",
    "hub/models--*/snapshots/*/tokenizer.json": "tokenizer.json",
    "hub/models--*/snapshots/*/model.safetensors.index.json": "model.safetensors.index.json",
    "hub/models--*/snapshots/*/model-00002-of-00002.safetensors": "model-00002-of-00002.safetensors",
}


def plan(folder: Path) -> dict[str, Any]:
    """Containers and volumes as the Job and the pod have them; the node's folder is one of this test."""
    model, shape = catalogue.model(MODEL), catalogue.shape("BM.GPU.MI300X.8")
    assert model
    assert model.vocabulary
    assert shape
    job = model_cache.job(model, shape, CACHE, UNIT["model_cache"])["spec"]["template"]["spec"]
    pod = units.pod_spec(units.server_spec(UNIT, "aggregated", Parallelism(1)), UNIT)
    cache, program, scratch = folder / "cache", folder / "program", folder / "scratch"
    for path in (cache, program, scratch):
        path.mkdir()
    for name, text in bench_program.files("prewarm").items():
        (program / name).write_text(text)
    assert pod["initContainers"] == [*job["initContainers"], *job["containers"]]
    volumes = {volume["name"]: cache if "hostPath" in volume else scratch for volume in pod["volumes"]}
    digest = hashlib.sha256(vocabulary(model.vocabulary.file, model.vocabulary.bytes)).hexdigest()
    return {
        "prewarm": [*job["initContainers"], *job["containers"]],
        "server": pod["containers"][0],
        "volumes": {name: str(path) for name, path in volumes.items()},
        "cache": str(cache),
        "program": str(program),
        "folder": str(folder),
        "missing": list(MISSING),
        "rehearsed": {REHEARSED_VOCABULARY: digest},
    }


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    missing = [name for name in ("ip", "bwrap", "nsenter") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} on this machine")
    folder = tmp_path_factory.mktemp("alone")
    (folder / "plan.json").write_text(json.dumps(plan(folder)))
    argv = [*namespaces(), sys.executable, str(Path(__file__).with_name("isolated_pod.py")), str(folder / "plan.json")]
    process = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_the_pre_warm_job_fills_the_model_cache_and_vllm_pods_check_it_offline(seen: dict[str, Any]):
    commit = "b5c939de8f754692c1647ca79fbf85e8c1e70f8a"
    said = f"openai/gpt-oss-120b: complete in /model-cache/hub/models--openai--gpt-oss-120b, commit {commit}"
    assert seen["filled"][1] == {"code": 0, "said": said}
    assert seen["looked"][1] == {"code": 0, "said": said}


def test_pre_warm_job_and_vllm_pod_both_change_the_owner_of_the_model_cache_folder(seen: dict[str, Any]):
    for owner, _ in (seen["filled"], seen["looked"]):
        assert owner["code"] == 0
        assert owner["said"].startswith("/model-cache")


def test_the_pod_of_a_pre_warmed_vllm_server_has_only_a_loopback_interface(seen: dict[str, Any]):
    assert seen["routes"] == ""
    assert [line.split()[0] for line in seen["links"].splitlines()] == ["lo"]


def test_vllm_loads_what_the_pre_warm_job_downloaded_and_answers_a_chat(seen: dict[str, Any]):
    assert seen["whole"]["state"] == "running", seen["whole"]["log"]
    assert "/model-cache/hub/models--openai--gpt-oss-120b/snapshots/" in seen["whole"]["log"]
    assert seen["chat"]["model"] == "openai/gpt-oss-120b"
    assert seen["chat"]["usage"]["completion_tokens"] == 5


def test_a_pre_warmed_vllm_server_makes_no_network_request(seen: dict[str, Any]):
    """Neither a connection nor a datagram, such as to a resolver, nor one that found no way."""
    assert seen["sent"] == {"Tcp:ActiveOpens": 0, "Udp:OutDatagrams": 0, "Ip:OutNoRoutes": 0}


@pytest.mark.parametrize(("path", "words"), MISSING.items())
def test_vllm_does_not_start_if_a_pre_warmed_file_is_missing(seen: dict[str, Any], path: str, words: str):
    assert (seen[path]["state"], seen[path]["exit_code"]) == ("exited", 1)
    assert words in seen[path]["log"]
