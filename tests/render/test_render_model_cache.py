"""The model cache: volumes, Jobs that fill it, and servers that start from it."""

import importlib

import pytest
from render_support import env, pod, vllm
from test_render_valid import misfits

DECODE, PREFILL = "gpt-oss-120b-decode", "gpt-oss-120b-prefill"
JOB = "prewarm-gpt-oss-120b"
FILE_SYSTEM = {"fileSystemId": "ocid1.filesystem.oc1..f", "mountTargetIp": "10.0.0.9", "exportPath": "/models"}
NODE_DISK = {"modelCache": {"kind": "node-disk"}}
FILE_STORAGE = {"modelCache": {"kind": "file-storage", "existing": FILE_SYSTEM}}
LUSTRE = {"modelCache": {"kind": "lustre", "existing": {"managementIp": "10.0.0.9", "fileSystemName": "models"}}}

MODULES = {"Job": "batch_v1", "PersistentVolume": "core_v1", "PersistentVolumeClaim": "core_v1", "ConfigMap": "core_v1"}


@pytest.fixture
def cached(varied):
    return lambda storage, **more: varied(stack={"storage": storage, **more})


def volume(stack, deployment, name="model-cache"):
    (matches,) = [item for item in pod(stack, deployment)["spec"]["volumes"] if item["name"] == name]
    return matches


def test_on_node_disks_a_pod_for_each_node_fills_the_cache(cached):
    spec = cached(NODE_DISK).kubernetes("Job", JOB)["spec"]
    assert (spec["completions"], spec["parallelism"]) == (9, 9)
    (term,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("storage", [FILE_STORAGE, LUSTRE])
def test_a_shared_cache_is_filled_once(cached, storage):
    spec = cached(storage).kubernetes("Job", JOB)["spec"]
    assert (spec["completions"], spec["parallelism"]) == (1, 1)
    assert "affinity" not in spec["template"]["spec"]


def test_the_jobs_pods_run_on_gpu_nodes_without_a_gpu(cached):
    spec = cached(NODE_DISK).kubernetes("Job", JOB)["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "BM.GPU.MI300X.8"}
    assert spec["tolerations"] == [
        {"key": "amd.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
    ]
    assert "amd.com/gpu" not in spec["containers"][0]["resources"]["requests"]


def test_servers_start_from_the_nodes_disks_and_ask_no_one(cached):
    stack = cached(NODE_DISK)
    assert volume(stack, DECODE)["hostPath"] == {"path": "/mnt/nvme/models", "type": "DirectoryOrCreate"}
    container = vllm(stack, DECODE)
    assert env(container)["HF_HUB_OFFLINE"] == "1"
    assert env(container)["HF_HOME"] == "/model-cache"
    assert "--served-model-name=openai/gpt-oss-120b" in container["args"]
    (cache,) = [mount for mount in container["volumeMounts"] if mount["name"] == "model-cache"]
    assert cache == {"name": "model-cache", "mountPath": "/model-cache", "readOnly": True}


def test_every_pod_makes_sure_of_its_weights_because_nodes_come_and_go(cached):
    stack = cached(NODE_DISK)
    first = ["prewarm-owner", "prewarm"]
    rest = [["compiled-code", "routing-proxy"], ["compiled-code"]]
    for role, others in zip((DECODE, PREFILL), rest, strict=True):
        assert [item["name"] for item in pod(stack, role)["spec"]["initContainers"]] == [*first, *others]


def test_the_job_and_the_pods_do_the_same(cached):
    stack = cached(NODE_DISK)
    job = stack.kubernetes("Job", JOB)["spec"]["template"]["spec"]
    assert pod(stack, DECODE)["spec"]["initContainers"][:2] == [*job["initContainers"], *job["containers"]]


@pytest.mark.parametrize("storage", [NODE_DISK, FILE_STORAGE, LUSTRE])
def test_what_downloads_is_not_root_whatever_the_cache_is_kept_on(cached, storage):
    spec = cached(storage).kubernetes("Job", JOB)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 0,
    }
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("storage", [NODE_DISK, LUSTRE])
def test_a_folder_of_roots_is_given_away_by_a_container_that_can_do_nothing_else(cached, storage):
    (owner,) = cached(storage).kubernetes("Job", JOB)["spec"]["template"]["spec"]["initContainers"]
    assert owner["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert (owner["securityContext"]["readOnlyRootFilesystem"], "env" in owner) == (True, False)


def test_on_file_storage_no_container_is_root(cached):
    """The export maps every user to the owner of the root folder."""
    assert "initContainers" not in cached(FILE_STORAGE).kubernetes("Job", JOB)["spec"]["template"]["spec"]


def test_the_program_comes_from_a_config_map_that_is_named_after_its_content(cached):
    stack = cached(NODE_DISK)
    name = volume(stack, DECODE, "prewarm-program")["configMap"]["name"]
    assert {"__main__.py", "__init__.py", "sources.py"} <= set(stack.kubernetes("ConfigMap", name)["data"])


def test_the_token_reaches_the_job_from_the_secret_only(rendered, cached):
    (container,) = cached(NODE_DISK).kubernetes("Job", JOB)["spec"]["template"]["spec"]["containers"]
    reference = {"name": "huggingface-token", "key": "token", "optional": True}
    assert container["env"] == [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}]


def test_a_pinned_commit_reaches_job_and_pods(cached):
    stack = cached({**NODE_DISK, "prewarm": {"revisions": {"gpt-oss-120b": "a" * 40}}})
    (container,) = stack.kubernetes("Job", JOB)["spec"]["template"]["spec"]["containers"]
    assert f"--revision={'a' * 40}" in container["args"]
    assert f"--revision={'a' * 40}" in pod(stack, DECODE)["spec"]["initContainers"][1]["args"]
    assert f"--revision={'a' * 40}" in vllm(stack, DECODE)["args"]


def test_servers_read_the_catalogues_commit_unless_a_bucket_has_the_weights(cached):
    commit = "--revision=b5c939de8f754692c1647ca79fbf85e8c1e70f8a"
    assert commit in vllm(cached({"modelCache": {"kind": "none"}}), DECODE)["args"]
    assert commit in vllm(cached(NODE_DISK), DECODE)["args"]
    stack = cached({**NODE_DISK, "prewarm": {"source": "object-storage"}})
    assert "--revision=main" in pod(stack, DECODE)["spec"]["initContainers"][1]["args"]
    assert not [argument for argument in vllm(stack, DECODE)["args"] if argument.startswith("--revision")]


def test_a_bucket_is_read_by_a_secret(rendered, rehearsal, cached):
    storage = {**NODE_DISK, "prewarm": {"source": "object-storage"}}
    stack = cached(storage)
    (container,) = stack.kubernetes("Job", JOB)["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [
        {"name": "MODEL_SOURCE_URL", "valueFrom": {"secretKeyRef": {"name": "model-source", "key": "url"}}}
    ]


def test_file_storage_is_mounted_by_its_driver(cached):
    stack = cached(FILE_STORAGE)
    spec = stack.kubernetes("PersistentVolume", "llm-d-model-cache")["spec"]
    assert spec["csi"] == {
        "driver": "fss.csi.oraclecloud.com",
        "volumeHandle": "ocid1.filesystem.oc1..f:10.0.0.9:/models",
    }
    assert spec["claimRef"] == {"namespace": "llm-d", "name": "model-cache"}
    assert spec["accessModes"] == ["ReadWriteMany"]
    assert spec["mountOptions"] == ["nconnect=16", "nosuid", "nodev"]
    assert stack.kubernetes("PersistentVolumeClaim", "model-cache")["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": "llm-d-model-cache",
        "resources": {"requests": spec["capacity"]},
    }
    assert spec["capacity"].keys() == {"storage"}
    assert volume(stack, DECODE)["persistentVolumeClaim"] == {"claimName": "model-cache"}


def test_lustre_is_mounted_by_its_driver(cached):
    spec = cached(LUSTRE).kubernetes("PersistentVolume", "llm-d-model-cache")["spec"]
    assert spec["csi"]["driver"] == "lustre.csi.oraclecloud.com"
    assert spec["csi"]["volumeHandle"] == "10.0.0.9@tcp:/models"
    assert spec["csi"]["volumeAttributes"] == {"setupLnet": "true"}


@pytest.mark.parametrize("storage", [FILE_STORAGE, LUSTRE])
def test_weights_outlive_the_stack(cached, storage):
    volume = cached(storage).kubernetes("PersistentVolume", "llm-d-model-cache")
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_without_a_prewarm_servers_download_into_the_cache(cached):
    stack = cached({**NODE_DISK, "prewarm": {"source": "none"}})
    jobs = [manifest["metadata"]["name"] for manifest in stack.manifests() if manifest["kind"] == "Job"]
    assert not [name for name in jobs if name.startswith("prewarm")]
    assert "HF_HUB_OFFLINE" not in env(vllm(stack, DECODE))
    assert [item["name"] for item in pod(stack, PREFILL)["spec"]["initContainers"]] == ["compiled-code"]


def test_units_wait_for_the_cache_and_the_job_has_a_limit_of_its_own(cached):
    stack = cached({**NODE_DISK, "prewarm": {"timeoutS": 900}})
    (unit,) = stack.of_type("llmd-oke:index:PrefillDecodeUnit")
    job = stack.kubernetes_resource("Job", JOB)
    assert job.urn in unit.depends_on
    assert job.timeouts["create"] == "1500s"
    assert job.inputs["spec"]["activeDeadlineSeconds"] == 900


def test_a_job_that_failed_is_made_anew_by_the_next_update(cached):
    job = cached(NODE_DISK).kubernetes_resource("Job", JOB)
    assert job.inputs["metadata"]["annotations"] == {"pulumi.com/replaceUnready": "true"}
    assert job.delete_before_replace


@pytest.mark.parametrize("storage", [NODE_DISK, FILE_STORAGE, LUSTRE])
def test_every_object_has_the_fields_of_its_kind(cached, storage):
    for manifest in cached(storage).manifests():
        if module := MODULES.get(manifest["kind"]):
            types = importlib.import_module(f"lightkube.models.{module}")
            assert list(misfits(manifest, getattr(types, manifest["kind"]), manifest["kind"])) == []
