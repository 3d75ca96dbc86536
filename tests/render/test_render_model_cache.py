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


def test_with_node_disks_one_pod_for_each_node_fills_the_model_cache(cached):
    spec = cached(NODE_DISK).kubernetes("Job", JOB)["spec"]
    assert (spec["completions"], spec["parallelism"]) == (9, 9)
    (term,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("storage", [FILE_STORAGE, LUSTRE])
def test_a_shared_model_cache_is_filled_by_one_pod(cached, storage):
    spec = cached(storage).kubernetes("Job", JOB)["spec"]
    assert (spec["completions"], spec["parallelism"]) == (1, 1)
    assert "affinity" not in spec["template"]["spec"]


def test_the_pre_warm_jobs_pods_run_on_gpu_nodes_without_a_gpu(cached):
    spec = cached(NODE_DISK).kubernetes("Job", JOB)["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "BM.GPU.MI300X.8"}
    assert spec["tolerations"] == [
        {"key": "amd.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
    ]
    assert "amd.com/gpu" not in spec["containers"][0]["resources"]["requests"]


def test_servers_load_weights_from_the_nodes_disks_without_network_access(cached):
    stack = cached(NODE_DISK)
    assert volume(stack, DECODE)["hostPath"] == {"path": "/mnt/nvme/models", "type": "DirectoryOrCreate"}
    container = vllm(stack, DECODE)
    assert env(container)["HF_HUB_OFFLINE"] == "1"
    assert env(container)["HF_HOME"] == "/model-cache"
    assert "--served-model-name=openai/gpt-oss-120b" in container["args"]
    (cache,) = [mount for mount in container["volumeMounts"] if mount["name"] == "model-cache"]
    assert cache == {"name": "model-cache", "mountPath": "/model-cache", "readOnly": True}


def test_every_server_pod_checks_its_model_weights_in_an_init_container_first(cached):
    stack = cached(NODE_DISK)
    first = ["prewarm-owner", "prewarm"]
    rest = [["compiled-code", "routing-proxy"], ["compiled-code"]]
    for role, others in zip((DECODE, PREFILL), rest, strict=True):
        assert [item["name"] for item in pod(stack, role)["spec"]["initContainers"]] == [*first, *others]


def test_the_pre_warm_job_and_server_pods_run_the_same_download(cached):
    stack = cached(NODE_DISK)
    job = stack.kubernetes("Job", JOB)["spec"]["template"]["spec"]
    assert pod(stack, DECODE)["spec"]["initContainers"][:2] == [*job["initContainers"], *job["containers"]]


@pytest.mark.parametrize("storage", [NODE_DISK, FILE_STORAGE, LUSTRE])
def test_the_download_of_weights_never_runs_as_root_whatever_the_caches_storage(cached, storage):
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
def test_the_container_that_sets_the_owner_of_the_model_cache_may_only_chown(cached, storage):
    (owner,) = cached(storage).kubernetes("Job", JOB)["spec"]["template"]["spec"]["initContainers"]
    assert owner["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert (owner["securityContext"]["readOnlyRootFilesystem"], "env" in owner) == (True, False)


def test_with_file_storage_the_pre_warm_job_has_no_init_container(cached):
    """The export maps every user to the owner of the root folder."""
    assert "initContainers" not in cached(FILE_STORAGE).kubernetes("Job", JOB)["spec"]["template"]["spec"]


def test_the_configmap_of_each_pre_warm_program_is_its_own_pulumi_resource(cached):
    stack = cached(NODE_DISK)
    name = volume(stack, DECODE, "prewarm-program")["configMap"]["name"]
    assert f"model-cache-{name}" in {item.name for item in stack.of_type("kubernetes:core/v1:ConfigMap")}
    assert {"__main__.py", "__init__.py", "sources.py"} <= set(stack.kubernetes("ConfigMap", name)["data"])


def test_the_pre_warm_job_gets_the_hugging_face_token_only_from_the_secret(rendered, cached):
    (container,) = cached(NODE_DISK).kubernetes("Job", JOB)["spec"]["template"]["spec"]["containers"]
    reference = {"name": "huggingface-token", "key": "token", "optional": True}
    assert container["env"] == [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}]


def test_a_models_pinned_commit_is_passed_to_the_pre_warm_job_and_server_pods(cached):
    stack = cached({**NODE_DISK, "prewarm": {"revisions": {"gpt-oss-120b": "a" * 40}}})
    (container,) = stack.kubernetes("Job", JOB)["spec"]["template"]["spec"]["containers"]
    assert f"--revision={'a' * 40}" in container["args"]
    assert f"--revision={'a' * 40}" in pod(stack, DECODE)["spec"]["initContainers"][1]["args"]
    assert f"--revision={'a' * 40}" in vllm(stack, DECODE)["args"]


def test_servers_load_the_commit_in_the_catalogue_unless_weights_are_in_a_bucket(cached):
    commit = "--revision=b5c939de8f754692c1647ca79fbf85e8c1e70f8a"
    assert commit in vllm(cached({"modelCache": {"kind": "none"}}), DECODE)["args"]
    assert commit in vllm(cached(NODE_DISK), DECODE)["args"]
    stack = cached({**NODE_DISK, "prewarm": {"source": "object-storage"}})
    assert "--revision=main" in pod(stack, DECODE)["spec"]["initContainers"][1]["args"]
    assert not [argument for argument in vllm(stack, DECODE)["args"] if argument.startswith("--revision")]


def test_weights_from_a_bucket_are_downloaded_by_a_link_that_is_in_a_secret(rendered, rehearsal, cached):
    storage = {**NODE_DISK, "prewarm": {"source": "object-storage"}}
    stack = cached(storage)
    (container,) = stack.kubernetes("Job", JOB)["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [
        {"name": "MODEL_SOURCE_URL", "valueFrom": {"secretKeyRef": {"name": "model-source", "key": "url"}}}
    ]


def test_file_storage_is_mounted_with_its_csi_driver(cached):
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


def test_lustre_is_mounted_with_its_csi_driver(cached):
    spec = cached(LUSTRE).kubernetes("PersistentVolume", "llm-d-model-cache")["spec"]
    assert spec["csi"]["driver"] == "lustre.csi.oraclecloud.com"
    assert spec["csi"]["volumeHandle"] == "10.0.0.9@tcp:/models"
    assert spec["csi"]["volumeAttributes"] == {"setupLnet": "true"}


@pytest.mark.parametrize("storage", [FILE_STORAGE, LUSTRE])
def test_volumes_with_model_weights_are_retained_when_the_stack_is_destroyed(cached, storage):
    volume = cached(storage).kubernetes("PersistentVolume", "llm-d-model-cache")
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_without_pre_warming_there_is_no_job_and_servers_download_their_weights(cached):
    stack = cached({**NODE_DISK, "prewarm": {"source": "none"}})
    jobs = [manifest["metadata"]["name"] for manifest in stack.manifests() if manifest["kind"] == "Job"]
    assert not [name for name in jobs if name.startswith("prewarm")]
    assert "HF_HUB_OFFLINE" not in env(vllm(stack, DECODE))
    assert [item["name"] for item in pod(stack, PREFILL)["spec"]["initContainers"]] == ["compiled-code"]


def test_servers_wait_for_the_pre_warm_job_with_the_configured_time_limit(cached):
    stack = cached({**NODE_DISK, "prewarm": {"timeoutS": 900}})
    (unit,) = stack.of_type("llmd-oke:index:PrefillDecodeUnit")
    job = stack.kubernetes_resource("Job", JOB)
    assert job.urn in unit.depends_on
    assert job.timeouts["create"] == "1500s"
    assert job.inputs["spec"]["activeDeadlineSeconds"] == 900


def test_the_next_update_recreates_a_failed_pre_warm_job(cached):
    job = cached(NODE_DISK).kubernetes_resource("Job", JOB)
    assert job.inputs["metadata"]["annotations"] == {"pulumi.com/replaceUnready": "true"}
    assert job.delete_before_replace


@pytest.mark.parametrize("storage", [NODE_DISK, FILE_STORAGE, LUSTRE])
def test_model_cache_objects_have_only_fields_that_kubernetes_defines(cached, storage):
    for manifest in cached(storage).manifests():
        if module := MODULES.get(manifest["kind"]):
            types = importlib.import_module(f"lightkube.models.{module}")
            assert list(misfits(manifest, getattr(types, manifest["kind"]), manifest["kind"])) == []
