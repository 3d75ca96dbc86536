import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llmd_bench.load.pod_load import LoadRequest
from llmd_oke.catalogue.benchmarks import bench_jobs, evals, inference_perf
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.objects import resolve_shape
from llmd_oke.planning import plan_object
from llmd_oke.program.acceptance import accepted_pool
from llmd_oke.serving import jobs
from llmd_oke.serving.acceptance import node_pod
from llmd_oke.serving.jobs import Evaluation, JobSettings, evaluation_job
from llmd_oke.values import read_yaml, values_folder
from stack_files import created_pool, created_stack, model, stack

PAGE = Path(__file__).parents[2] / "docs" / "pod-security.md"
REASONS: dict[str, dict[str, str]] = read_yaml(values_folder() / "serving" / "pod-security.yaml")
DEPLOYED = ("rehearsal", "guide-baseline", "reference", "small", "existing")
FURTHER = stack(
    model("agg-tp1-1r", model="qwen3-32b", engine={"kvCache": {"hostMemoryGib": 8, "diskGib": 100}}),
    release="llm-d-0.10.0",
    storage={"modelCache": {"kind": "node-disk"}},
)
"""Stack with what the kit's own don't ask for."""
WORKLOADS = ("Deployment", "DaemonSet", "Job", "StatefulSet", "Pod")
DEVICES = ("amd.com/", "nvidia.com/")
CALICOS = ("calico-node", "calico-kube-controllers")
"""Objects of Calico's own manifest."""
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
HOST = ("hostNetwork", "hostPID", "hostIPC")


@dataclass(frozen=True)
class Contained:
    """A container, its pod, and what kind of object declares them."""

    kind: str
    pod: Mapping[str, Any]
    container: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.container["name"]

    def security(self, key: str) -> Any:
        """Return what the container says, or else its pod."""
        of_pod = self.pod.get("securityContext", {}).get(key)
        return self.container.get("securityContext", {}).get(key, of_pod)

    @property
    def capabilities(self) -> Mapping[str, list[str]]:
        return self.security("capabilities") or {}

    @property
    def has_token(self) -> bool:
        """Tell whether the API server's token is in the container: of the whole pod, or of a volume that it mounts."""
        mounted = any(mount["mountPath"] == ACCOUNT_FOLDER for mount in self.container.get("volumeMounts", ()))
        return mounted or self.pod.get("automountServiceAccountToken") is not False

    @property
    def devices(self) -> list[str]:
        limits = self.container.get("resources", {}).get("limits", {})
        return [name for name in limits if name.startswith(DEVICES)]

    @property
    def host_folders(self) -> list[str]:
        mounted = {mount["name"] for mount in self.container.get("volumeMounts", ())}
        volumes = [item for item in self.pod.get("volumes", ()) if item["name"] in mounted]
        return [item["hostPath"]["path"] for item in volumes if "hostPath" in item]

    def needs(self) -> Iterator[str]:
        """Return a container's rights beyond the `restricted` standard, a read-only root folder, and no token."""
        if self.security("runAsNonRoot") is not True:
            yield "root user"
        if self.security("readOnlyRootFilesystem") is not True:
            yield "writable root folder"
        if self.security("allowPrivilegeEscalation") is not False:
            yield "more privileges"
        if self.security("privileged"):
            yield "all privileges"
        if (self.security("seccompProfile") or {}).get("type") != "RuntimeDefault":
            yield "system calls beside the runtime's profile"
        if "ALL" not in self.capabilities.get("drop", ()):
            yield "the runtime's capabilities"
        yield from (f"capability {name}" for name in self.capabilities.get("add", ()))
        yield from (f"{name} of the node" for name in HOST if self.pod.get(name))
        yield from ["device"] * bool(self.devices)
        yield from ["host folder"] * bool(self.host_folders)
        yield from ["API token"] * self.has_token


def containers(manifest: Mapping[str, Any]) -> Iterator[Contained]:
    """The containers of a workload."""
    spec = manifest["spec"]
    pod = spec["template"]["spec"] if "template" in spec else spec
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        yield Contained(manifest["kind"], pod, container)


def operations() -> Iterator[Mapping[str, Any]]:
    """The Jobs of commands, which no stack declares."""
    place = JobSettings("llm-d", "job", job_images().python, resolve_shape("BM.GPU.MI300X.8"))
    facts, seconds = bench_jobs(), 60
    load = LoadRequest("llm-d", "job", "http://m", "m", ("constant:1",), None, 1.0, "8", "8", 0, "r", 1)
    yield jobs.load_job(place, load, facts)
    yield jobs.tool_job(place, inference_perf(), facts, seconds)
    package = next(iter(evals().packages.values()))
    yield evaluation_job(place, Evaluation("e", package, "http://m", "m", 1), facts, seconds)
    (accepted,) = plan_object(created_stack(created_pool())).acceptance
    yield node_pod(accepted_pool(accepted, ""), place.shape, "vllm:v1", rdma=True)


@pytest.fixture(scope="module")
def every(rendered: Any) -> list[Contained]:
    """All containers of the kit's stacks and commands."""
    of_stacks = [manifest for each in (*DEPLOYED, FURTHER) for manifest in rendered(each).manifests()]
    return [
        contained
        for manifest in [*of_stacks, *operations()]
        if manifest["kind"] in WORKLOADS and manifest["metadata"].get("name") not in CALICOS
        for contained in containers(manifest)
    ]


def needs(every: list[Contained]) -> dict[str, set[str]]:
    """Return what containers of a name need in any stack."""
    matches: dict[str, set[str]] = {}
    for contained in every:
        matches.setdefault(contained.name, set()).update(contained.needs())
    return {name: of_name for name, of_name in matches.items() if of_name}


def page(every: list[Contained]) -> str:
    """The whole page."""
    lines = [
        "# What pods may do",
        "",
        "Made by `tests/render/test_render_pod_security.py` from what the kit declares in its own stacks and",
        "by its commands, and from `values/serving/pod-security.yaml`; it writes this page with",
        "`LLMD_OKE_UPDATE_GOLDEN=1`. A need without a reason fails it, and so does a reason without a need.",
        "",
        "Every container drops all capabilities, can't gain privileges, has the runtime's seccomp profile and",
        "none of the node's namespaces. What else it has is in the table. Pods of operators and add-ons are",
        "those of their charts, of Calico's manifest and of OKE: device plug-ins, network operators, policy",
        "engines and storage drivers are privileged on their nodes.",
        "",
        "| container | user | root folder | added capabilities | devices and folders of the node | API token |",
        "|---|---|---|---|---|---|",
        *(row(name, [item for item in every if item.name == name]) for name in sorted({item.name for item in every})),
        "",
        "| container | needs | because |",
        "|---|---|---|",
    ]
    for name, reasons in sorted(REASONS.items()):
        lines += [f"| `{name}` | {need} | {why} |" for need, why in reasons.items()]
    return "\n".join(lines) + "\n"


def row(name: str, alike: list[Contained]) -> str:
    """A container's line; where stacks differ, all that it has in any."""

    def one(words: Iterable[str]) -> str:
        return ", ".join(sorted(set(words))) or "-"

    users = one("root" if not item.security("runAsNonRoot") else user(item) for item in alike)
    roots = one("read-only" if item.security("readOnlyRootFilesystem") else "writable" for item in alike)
    added = one(word for item in alike for word in item.capabilities.get("add", ()))
    host = one(f"`{word}`" for item in alike for word in [*item.devices, *item.host_folders])
    tokens = one("mounted" if item.has_token else "none" for item in alike)
    return f"| `{name}` | {users} | {roots} | {added} | {host} | {tokens} |"


def user(contained: Contained) -> str:
    """A user that isn't root."""
    number = contained.security("runAsUser")
    return "the image's, not root" if number is None else str(number)


def test_every_security_exception_of_a_container_is_needed_and_documented(every: list[Contained]):
    assert needs(every) == {name: set(reasons) for name, reasons in REASONS.items()}


def test_no_container_may_gain_privileges_or_share_the_nodes_namespaces(every: list[Contained]):
    given = {need for of_name in needs(every).values() for need in of_name}
    allowed = {"root user", "writable root folder", "device", "host folder", "API token"}
    assert given - allowed == {f"capability {name}" for name in ("IPC_LOCK", "SYS_NICE", "CHOWN", "DAC_OVERRIDE")}


def test_containers_of_envoy_vllm_and_benchmarks_mount_no_service_account_token(every: list[Contained]):
    tokens = {item.name: item.has_token for item in every}
    assert all(tokens[name] for name in ("epp", "routing-proxy", "publish"))
    assert not {"envoy-proxy", "vllm", "inference-perf", "prewarm"} & {name for name, has in tokens.items() if has}


def test_the_pod_security_page_equals_what_is_generated_from_the_declarations(every: list[Contained]):
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        PAGE.write_text(page(every))
    assert PAGE.read_text() == page(every)
