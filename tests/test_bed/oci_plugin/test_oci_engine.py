"""The real engine, attached to the stand-in for OCI."""

import base64
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pulumi
import pytest
from free_ports import free_port
from listening import Listener
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_oke.catalogue.oci_monitoring import oci_monitoring
from llmd_oke.operations import backend, drift, nodes, rebuild, recovery
from llmd_oke.operations.nodes import ReplaceOptions, launched_nodes, replace_nodes
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli
from llmd_oke.operations.updates import is_gone_after_failure
from llmd_rehearsal.agent_config import NodeConfig
from llmd_rehearsal.engine_events import StepRecorder
from llmd_rehearsal.engine_nodes import cli_of, oci_client
from llmd_rehearsal.oci_plugin.region import read_journal
from llmd_rehearsal.oci_plugin.server import PluginOptions, start
from pulumi import automation
from pulumi_engine import KeptStack, new_stack, use_pulumi

pytestmark = [pytest.mark.rehearsal, pytest.mark.engine]

COMPARTMENT = "ocid1.compartment.oc1..aaaa"
TENANCY = "ocid1.tenancy.oc1..aaaa"
VERSION = "v1.34.2"
LIMIT_S = 120
INSTANCE = "oci:Core/instance:Instance"
NODE_POOL = "oci:ContainerEngine/nodePool:NodePool"
DOMAIN, OTHER_DOMAIN = (f"Uocm:US-ASHBURN-AD-{number}" for number in (1, 2))
AUTHORITY = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMII\n").decode()
NO_MACHINE = "faults: [{resource: ClusterNetwork, operation: update, fault: out-of-host-capacity, times: 3}]"
SAVING_LAST = {"PULUMI_EXPERIMENTAL": "true", "PULUMI_SKIP_CHECKPOINTS": "true"}
"""Settings with which an engine writes a state when an operation ends, and not after each resource."""
KUBECONFIG = 'clusters: [{name: c, cluster: {server: "https://10.244.0.1:6443"}}]\n'


@dataclass
class Nodes:
    """A stand-in for the node agent."""

    there: set[str] = field(default_factory=set[str])

    def add(self, nodes: Sequence[NodeConfig]) -> None:
        self.there |= {node.name for node in nodes}

    def remove(self, name: str) -> None:
        self.there.discard(name)


@dataclass(frozen=True)
class Kit:
    """A small stack. `run` does an operation of the engine on it."""

    nodes: Nodes
    folder: Path
    stack: KeptStack
    program: Callable[..., Callable[[], None]]
    rest_url: str
    steps: StepRecorder = field(default_factory=lambda: StepRecorder(lambda _: None))

    def run(
        self,
        operation: str,
        reads_first: bool = False,
        replaced: Sequence[str] = (),
        tries_all: bool = False,
        **inputs: Any,
    ) -> Any:
        how: dict[str, Any] = {"diff": True} if operation == "preview" else {}
        if tries_all:
            how["continue_on_error"] = True
        if replaced:
            how["replace"] = list(replaced)
        if reads_first:
            how["refresh"] = True
        self.stack.workspace.program = self.program(**inputs)
        return getattr(self.stack, operation)(on_event=self.steps.hear, **how)

    def break_oci(self, faults: str) -> None:
        """Have OCI fail from now on as a file of faults says."""
        (self.folder / "oci-faults.yaml").write_text(faults)

    def change_behind_the_engine(self, **inputs: Any) -> None:
        """Change what OCI has, and let the engine forget that it did it."""
        before = self.stack.export_stack()
        self.run("up", **inputs)
        self.stack.import_stack(before)

    def kill_engine_during(self, type_: str, count: int = 1, **inputs: Any) -> None:
        """Kill the engine of an update once OCI creates so many resources of a type, which it gets done without it."""

        errors: list[automation.CommandError] = []

        def update() -> None:
            try:
                self.run("up", **inputs)
            except automation.CommandError as error:
                errors.append(error)

        def ordered() -> bool:
            if errors:
                raise errors[0]
            return len({line["id"] for line in self.journal(type_)}) == count

        updating = threading.Thread(target=update)
        updating.start()
        _wait_for(ordered)
        for process in _children("up"):
            os.kill(process, signal.SIGKILL)
        updating.join(LIMIT_S)
        _wait_for(lambda: {"gpu-0", "gpu-1"} <= self.nodes.there)

    def recover(self, **inputs: Any) -> tuple[list[str], list[str]]:
        """Return what recovery would do, and what it did then."""
        cli = self._cli(**inputs)
        find = recovery.in_oci(lambda: oci_client(self.rest_url))
        assert backend.unlock(cli) == 0
        foreseen = list(recovery.look(cli.export()["deployment"], find).lines())
        done = recovery.recover(cli, Listener(), lambda: oci_client(self.rest_url))
        return foreseen, list(done.lines())

    def replace_nodes(self, *names: str, **inputs: Any) -> list[str]:
        """Launch nodes anew as `nodes replace` does; return what it said."""
        cli, listener = self._cli(**inputs), Listener()
        how = ReplaceOptions(client=lambda: oci_client(self.rest_url), pause=lambda _: time.sleep(0.01))
        assert replace_nodes(cli, listener, lambda _: True, names, how, yes=True) == 0
        return listener.news

    def delete_in_oci(self, collection: str, type_: str) -> None:
        """Delete a resource as somebody does in the console."""
        answer = httpx2.delete(f"{self.rest_url}/20180222/{collection}/{self.ocid_of(type_)}")
        assert answer.status_code == 200, answer.text

    def forget_losses(self, **inputs: Any) -> rebuild.Losses:
        """Forget what OCI no longer has, as `llmd-oke rebuild` does; return what that was."""
        cli = self._cli(**inputs)
        losses = rebuild.find_losses(cli, lambda: oci_client(self.rest_url), COMPARTMENT, Listener())
        rebuild.forget_losses(cli, losses, Listener())
        return losses

    def machines(self) -> dict[str, str]:
        """The instance configuration of each machine of the cluster network, by its OCID."""
        return {machine["id"]: machine["configuration"] for machine in self.journal("ClusterNetwork")[-1]["machines"]}

    def pool_machines(self) -> dict[str, str]:
        """The version of Kubernetes of each machine of the pool of GPU nodes, by its OCID."""
        pool = [line for line in self.journal("NodePool") if line["state"]["name"] == "gpu"][-1]
        return {machine["id"]: machine["kubernetesVersion"] for machine in pool["machines"]}

    def every_machine(self) -> set[str]:
        """The OCIDs of all machines that the cluster network ever had."""
        return {machine["id"] for network in self.journal("ClusterNetwork") for machine in network["machines"]}

    def journal(self, type_: str) -> list[dict[str, Any]]:
        """Return what OCI's journal says of resources of a type, one after the other."""
        return [
            line for line in read_journal(self.folder / "journal.jsonl") if line.get("token", "").endswith(f":{type_}")
        ]

    def drift(self) -> list[str]:
        """Return what the CLI sees of such changes, in words."""
        return [str(item) for item in drift.everywhere(self._cli(), SilentProgress())]

    def _cli(self, **inputs: Any) -> PulumiCli:
        """The kit's CLI, which gets the state from its file: a start of Pulumi's takes a sixth of a second."""
        self.stack.workspace.program = self.program(**inputs)
        cli = cli_of(self.stack, self.folder, lambda _: None)

        def run(argv: Sequence[str], capture: bool) -> CommandResult:
            exports = argv[1:3] == ["stack", "export"]
            return CommandResult(0, json.dumps(vars(self.stack.export_stack()))) if exports else cli.run(argv, capture)

        return replace(cli, run=run)

    def resources(self) -> list[dict[str, Any]]:
        """Return what the engine wrote down."""
        return (self.stack.export_stack().deployment or {})["resources"]

    def outputs_of(self, type_: str, name: str = "") -> dict[str, Any]:
        """The outputs of a resource, by its type and by its `name` in OCI where there are several."""
        of_type = [item["outputs"] for item in self.resources() if item["type"].endswith(f":{type_}")]
        return next(item for item in of_type if not name or item["name"] == name)

    def image_of(self, pool: str) -> str:
        return self.outputs_of("NodePool", pool)["nodeSourceDetails"]["imageId"]

    def instances(self) -> dict[str, tuple[str, str]]:
        """OCID and labels of each instance."""
        instances = [item["outputs"] for item in self.resources() if item["type"] == INSTANCE]
        return {item["displayName"]: (item["id"], item["metadata"]["oke-initial-node-labels"]) for item in instances}

    def ocid_of(self, type_: str) -> str:
        return self.outputs_of(type_)["id"]

    def changes(self, operation: str, **inputs: Any) -> dict[str, int]:
        """Return how many resources an operation did what to."""
        self.run(operation, **inputs)
        return self.steps.changes


def _children(operation: str) -> list[int]:
    """The Pulumi CLIs that this process has started for an operation."""
    numbers = [word for file in Path("/proc/self/task").glob("*/children") for word in file.read_text().split()]
    commands = {int(number): (Path("/proc") / number / "cmdline").read_bytes().split(b"\0") for number in numbers}
    return [number for number, words in commands.items() if b"pulumi" in words[0] and operation.encode() in words]


def _wait_for(condition: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


Program = Callable[..., Callable[[], None]]
KitIn = Callable[[Path, Program], Kit]
Deploy = Callable[..., Kit]


@pytest.fixture
def time_scale() -> float:
    """Wall seconds for a second of OCI's."""
    return 0.0001


@pytest.fixture
def kit_in(monkeypatch: pytest.MonkeyPatch, time_scale: float) -> Iterator[KitIn]:
    """A function that returns the stack in a folder, with a stand-in for OCI that goes on from the journal there."""
    with ExitStack() as ends:

        def standing_in(folder: Path, program: Program) -> Kit:
            (folder / "kubeconfig.yaml").write_text(KUBECONFIG)
            nodes, port = Nodes(), free_port()
            files = (folder / name for name in ("kubeconfig.yaml", "journal.jsonl", "oci-faults.yaml"))
            server = start(0, PluginOptions(*files, nodes, time_scale, rest_port=port))
            ends.callback(server.stop)
            use_pulumi(monkeypatch, folder, PULUMI_DEBUG_PROVIDERS=f"oci:{server.port}", **SAVING_LAST)
            project = automation.ProjectSettings("oci", "python")
            options = automation.LocalWorkspaceOptions(str(folder), project_settings=project)
            return Kit(nodes, folder, new_stack(program(), options, "dev"), program, f"http://127.0.0.1:{port}")

        yield standing_in


@pytest.fixture
def kit(kit_in: KitIn, tmp_path: Path) -> Kit:
    return kit_in(tmp_path, _program)


@pytest.fixture(scope="module")
def deployments() -> dict[str, tuple[Path, set[str]]]:
    """The folders of stacks that an update has created, and the nodes that each has, by program and inputs."""
    return {}


@pytest.fixture
def deployed(
    kit_in: KitIn, tmp_path_factory: pytest.TempPathFactory, deployments: dict[str, tuple[Path, set[str]]]
) -> Deploy:
    """A function that returns a stack after its first update with these inputs, which runs once for all tests: each
    goes on with a copy of the state and of what is in OCI.
    """

    def deploy(program: Program = _components, **inputs: Any) -> Kit:
        key = repr((program.__name__, inputs))
        if key not in deployments:
            first = kit_in(tmp_path_factory.mktemp("deployed"), program)
            first.run("up", **inputs)
            deployments[key] = (first.folder, first.nodes.there)
        folder, there = deployments[key]
        copy = tmp_path_factory.mktemp("copy")
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        kit = kit_in(copy, program)
        kit.nodes.there |= there
        return kit

    return deploy


def _program(size: int = 9, name: str = "net", domain: str = DOMAIN, cidr: str = "10.0.32.0/19") -> Callable[[], None]:
    def program() -> None:
        import pulumi_oci as oci  # noqa: PLC0415 - half a second of import time

        provider = oci.Provider("oci", region="us-ashburn-1")
        options, invoke_options = pulumi.ResourceOptions(provider=provider), pulumi.InvokeOptions(provider=provider)
        vcn = oci.core.Vcn(
            "vcn", compartment_id=COMPARTMENT, cidr_blocks=["10.0.0.0/16"], display_name=name, opts=options
        )
        where: Any = {"compartment_id": COMPARTMENT, "vcn_id": vcn.id}
        api = oci.core.Subnet("api", **where, cidr_block="10.0.0.0/28", prohibit_public_ip_on_vnic=True, opts=options)
        workers = oci.core.Subnet("workers", **where, cidr_block=cidr, opts=options)
        group = oci.core.NetworkSecurityGroup("group", **where, opts=options)
        cluster = oci.containerengine.Cluster(
            "cluster",
            **where,
            kubernetes_version=VERSION,
            name="prod",
            endpoint_config={"subnet_id": api.id, "nsg_ids": [group.id]},
            cluster_pod_network_options=[{"cni_type": "FLANNEL_OVERLAY"}],
            opts=options,
        )
        compute = oci.core.ComputeCluster("rdma", compartment_id=COMPARTMENT, availability_domain=domain, opts=options)
        oci.containerengine.NodePool(
            "gpu",
            cluster_id=cluster.id,
            compartment_id=COMPARTMENT,
            name="gpu",
            node_shape="BM.GPU.MI300X.8",
            node_config_details={
                "size": size,
                "compute_cluster_id": compute.id,
                "nsg_ids": [group.id],
                "placement_configs": [{"availability_domain": domain, "subnet_id": workers.id}],
            },
            opts=options,
        )
        content = oci.containerengine.get_cluster_kube_config_output(cluster_id=cluster.id, opts=invoke_options).content
        pulumi.export("kubeconfig", content)

    return program


def _components(
    version: str = VERSION,
    name: str = "prod",
    image: str | None = None,
    team: str = "",
    launch: str = "plain",
    cycling: bool = True,
) -> Callable[[], None]:
    """The kit's own components for a cluster, its rights, alarms and logs, a system pool and a pool of GPU nodes."""

    def program() -> None:
        import pulumi_oci as oci  # noqa: PLC0415 - half a second of import time
        from llmd_oke.cluster.gpu_pool import GpuPool, Launch  # noqa: PLC0415
        from llmd_oke.cluster.iam import Iam  # noqa: PLC0415
        from llmd_oke.cluster.oci_monitoring import OciAlarmArgs, OciMonitoring  # noqa: PLC0415
        from llmd_oke.cluster.oke_cluster import OkeCluster  # noqa: PLC0415
        from llmd_oke.cluster.pools import SystemPool  # noqa: PLC0415

        place: Any = {"compartment_id": COMPARTMENT}
        vcn = oci.core.Vcn("vcn", **place, cidr_blocks=["10.0.0.0/16"])
        api = oci.core.Subnet("api", **place, vcn_id=vcn.id, cidr_block="10.0.0.0/28")
        workers = oci.core.Subnet("workers", **place, vcn_id=vcn.id, cidr_block="10.0.32.0/19")
        choices = {"cluster_name": name, "region": "us-ashburn-1", "kubernetes_version": version, "flannel": True}
        network: Any = {"vcn_id": vcn.id, "api_subnet_id": api.id}
        kubeconfig = KUBECONFIG + "users: [{user: {}}]"
        control_plane: Any = {**place, **choices, "network": network, "kubeconfig": kubeconfig}
        oke = OkeCluster("oke", control_plane)
        cluster = {"cluster_id": oke.cluster_id, **place, "tenancy_id": TENANCY}
        pool: Any = {
            "kubernetes_version": version,
            "cluster": {**cluster, "api_server_host": "10.0.0.5", "ca_certificate": AUTHORITY},
            "network": {"worker_subnet_id": workers.id},
        }
        own: Any = {} if image is None else {"image_id": image}
        nodes: Any = {"shape": "VM.Standard.E5.Flex", "size": 1, "availability_domains": [DOMAIN]}
        system: Any = {"pool_name": "system", **pool, **nodes, **own}
        SystemPool("system", system)
        gpus: Any = {"shape": "BM.GPU.MI300X.8", "size": 2, "launch": Launch(launch), "availability_domain": DOMAIN}
        cycles = {"mode": "replace-node", "max_surge": "0", "max_unavailable": "1"}
        rest: Any = {"image_id": "ocid1.image.oc1.iad.own"}
        rest |= {"labels": {"team": team}} if team else {}
        rest |= {"cycling": cycles} if launch == "plain" and cycling else {}
        gpu: Any = {"pool_name": "gpu", **pool, **gpus, **rest}
        GpuPool("gpu", gpu)
        rights: Any = {"needs": ["self-managed-nodes", "oci-logs"], "tenancy_id": TENANCY, "cluster_id": oke.cluster_id}
        iam: Any = {**place, **rights, "provider_is_home": True, "display_name": name}
        groups = Iam("iam", iam).group_ids
        alarms = [
            {key: getattr(alarm, key) for key in OciAlarmArgs.__annotations__} for alarm in oci_monitoring().alarms
        ]
        logs = {"retention_days": 30, "control_plane": True, "nodes_group_id": groups["nodes"]}
        told: Any = {**place, "cluster_id": oke.cluster_id, "alarms": alarms, "recipients": ["ops@example.com"], **logs}
        OciMonitoring("oci-monitoring", told)

    return program


@pytest.fixture
def pools(kit: Kit) -> Kit:
    """The kit's own components."""
    return replace(kit, program=_components)


def _rights_and_storage(lustre: bool = False) -> Callable[[], None]:
    """A stack that has rights, and later a Lustre file system with rights of its own."""

    def program() -> None:
        import pulumi_oci as oci  # noqa: PLC0415 - half a second of import time
        from llmd_oke.cluster.iam import Iam, wait_for_policies  # noqa: PLC0415
        from llmd_oke.cluster.storage import Storage  # noqa: PLC0415
        from llmd_oke.objects import is_update  # noqa: PLC0415

        waits = [wait_for_policies(delay_s=2.0)] if is_update() else []
        opts = pulumi.ResourceOptions(transformations=waits)
        vcn = oci.core.Vcn("vcn", compartment_id=COMPARTMENT, cidr_blocks=["10.0.0.0/16"])
        subnet = oci.core.Subnet("lustre", compartment_id=COMPARTMENT, vcn_id=vcn.id, cidr_block="10.0.0.0/24")
        needs = ["managed-compute-cluster", *(["lustre"] if lustre else [])]
        rights: Any = {"needs": needs, "compartment_id": COMPARTMENT, "tenancy_id": TENANCY, "provider_is_home": True}
        iam = Iam("iam", rights, opts)
        if lustre:
            place = {"compartment_id": COMPARTMENT, "availability_domain": DOMAIN, "subnet_id": subnet.id}
            storage: Any = {"kind": "lustre", **place}
            Storage("storage", storage, pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[iam])))

    return program


def test_resources_that_need_changed_iam_policies_wait_until_oci_applies_them(kit: Kit):
    stack, words = replace(kit, program=_rights_and_storage), "storage-file-system waits 2 s until OCI acts"
    assert words not in stack.run("up").stdout
    started_s = time.monotonic()
    assert words in stack.run("up", lustre=True).stdout
    assert time.monotonic() - started_s >= 2.0
    assert words not in stack.run("up", lustre=True).stdout


def test_values_that_oci_returns_in_another_form_cause_no_change_in_a_second_update(deployed: Deploy):
    pools = deployed()
    assert set(pools.changes("up")) == {"same"}
    assert set(pools.changes("up", reads_first=True)) == {"same"}


def test_system_nodes_get_another_image_only_with_another_kubernetes_version(deployed: Deploy):
    pools = deployed()
    older = pools.image_of("system")
    assert pools.changes("preview").keys() == {"same"}
    pools.run("up", version="v1.35.2")
    newer = "ocid1.image.oc1.iad.oraclelinux810202606300oke13521100"
    assert (older, pools.image_of("system")) == (newer.replace("1352", "1342"), newer)


def test_a_node_image_of_another_kubernetes_version_is_refused(deployed: Deploy):
    pools = deployed()
    with pytest.raises(automation.CommandError, match="409-Conflict, Kubernetes version does not match"):
        pools.run("up", version="v1.35.2", image=pools.image_of("system"))


def test_renaming_a_cluster_updates_it_in_place(deployed: Deploy):
    pools = deployed()
    before = pools.ocid_of("Cluster")
    pools.run("up", name="renamed")
    assert pools.ocid_of("Cluster") == before


def test_instances_are_replaced_one_by_one_and_unchanged_ones_are_kept(deployed: Deploy):
    how: Any = {"launch": "compute-cluster-instances"}
    pools = deployed(**how)
    before = pools.instances()
    changes: Any = {"team": "search", "version": "v1.35.2"}
    pools.run("up", **how, **changes)
    assert pools.instances() == before
    assert set(pools.changes("up", **how, **changes)) == {"same"}
    first, second = launched_nodes(pools.resources())
    assert (first.current, second.current) == (False, False)
    pools.run("up", replaced=first.urns, **how, **changes)
    assert [node.current for node in launched_nodes(pools.resources())] == [True, False]
    after = pools.instances()
    assert (after["gpu-0"] == before["gpu-0"], after["gpu-1"] == before["gpu-1"]) == (False, True)
    assert "team=search" in after["gpu-0"][1]
    pools.run("up", replaced=first.urns, **how, **changes)
    assert after["gpu-0"] != pools.instances()["gpu-0"]
    assert set(pools.changes("up", **how, **changes)) == {"same"}


@pytest.mark.nightly
def test_the_replace_nodes_command_relaunches_instances_with_outdated_metadata(deployed: Deploy):
    how: Any = {"launch": "compute-cluster-instances"}
    pools = deployed(**how)
    pools.run("up", **how, team="search")
    before = pools.instances()
    news = pools.replace_nodes(**how, team="search")
    assert [item for item in news if item in {"launching anew: gpu-0", "launching anew: gpu-1"}] == [
        "launching anew: gpu-0",
        "launching anew: gpu-1",
    ]
    after = pools.instances()
    assert all(after[name] != before[name] and "team=search" in after[name][1] for name in ("gpu-0", "gpu-1"))
    assert pools.replace_nodes(**how, team="search") == ["all nodes were launched as the stack file says"]


@pytest.mark.parametrize(
    ("how", "changes", "machines"),
    [
        pytest.param({"launch": "cluster-network"}, {"team": "search"}, Kit.machines, id="of a cluster network"),
        pytest.param({"cycling": False}, {}, Kit.pool_machines, id="of a managed pool"),
    ],
)
def test_gpu_nodes_are_replaced_one_by_one_and_current_ones_are_kept(
    deployed: Deploy, how: dict[str, Any], changes: dict[str, Any], machines: Callable[[Kit], dict[str, str]]
):
    pools = deployed(**how)
    before = machines(pools)
    newer: Any = {**how, **changes, "version": "v1.35.2"}
    pools.run("up", **newer)
    assert machines(pools) == before
    news = pools.replace_nodes("gpu-1", **newer)
    assert [item for item in news if item.startswith("launching anew: ")] == ["launching anew: gpu-1"]
    assert len(machines(pools).keys() & before.keys()) == 1
    news = pools.replace_nodes(**newer)
    assert [item for item in news if item.startswith("launching anew: ")] == ["launching anew: gpu-0"]
    after = machines(pools)
    assert after.keys().isdisjoint(before)
    assert len(set(after.values()) - set(before.values())) == len(set(after.values())) == 1
    assert pools.nodes.there == {"system-0", "gpu-0", "gpu-1"}
    assert pools.replace_nodes(**newer)[-1] == "all nodes were launched as the stack file says"
    assert set(pools.changes("up", **newer)) == {"same"}


def test_a_node_replacement_that_oci_lacks_capacity_for_continues_in_the_next_run(
    deployed: Deploy, monkeypatch: pytest.MonkeyPatch
):
    how: Any = {"launch": "cluster-network"}
    pools = deployed(**how)
    pools.run("up", **how, team="search")
    before = pools.machines()
    pools.break_oci(NO_MACHINE)
    with monkeypatch.context() as impatient:
        impatient.setattr(nodes, "LAUNCH_S", 0.0)
        with pytest.raises(KitError, match="OCI has 1 of 2 instances of gpu"):
            pools.replace_nodes(**how, team="search")
    news = pools.replace_nodes(**how, team="search")
    assert [item for item in news if item.startswith("launching anew: ")] == ["launching anew: gpu-1"]
    assert pools.machines().keys().isdisjoint(before)
    assert len(pools.every_machine()) == 2 * len(before)


@pytest.mark.parametrize("time_scale", [0.01])
@pytest.mark.parametrize(
    ("launch", "type_", "count"),
    [
        pytest.param("cluster-network", "ClusterNetwork", 1, marks=pytest.mark.nightly),
        ("compute-cluster-instances", "Instance", 2),
    ],
)
def test_gpu_nodes_of_a_killed_pulumi_update_are_adopted_and_not_created_twice(
    pools: Kit, monkeypatch: pytest.MonkeyPatch, launch: str, type_: str, count: int
):
    monkeypatch.delenv("PULUMI_SKIP_CHECKPOINTS")
    how: Any = {"launch": launch}
    pools.kill_engine_during(type_, count, **how)
    ordered = {line["id"] for line in pools.journal(type_)}
    foreseen, done = pools.recover(**how)
    assert foreseen == done
    taken = [line for line in foreseen if line.startswith(f"creating {type_} gpu-")]
    assert [line.split(": ")[1].startswith("it is there, and is taken into the state") for line in taken] == [
        True
    ] * count
    pools.run("up", **how)
    assert {line["id"] for line in pools.journal(type_)} == ordered
    assert len(ordered) == count
    assert len({line["id"] for line in pools.journal("NodePool")}) == 1
    assert set(pools.changes("up", **how)) == {"same"}


def test_resources_are_created_changed_and_deleted_in_the_order_that_oci_requires(kit: Kit):
    result = kit.run("up")
    assert kit.steps.changes == {"create": 9}
    assert result.outputs["kubeconfig"].value == KUBECONFIG
    assert kit.nodes.there == {f"gpu-{index}" for index in range(9)}
    assert kit.changes("up") == {"same": 9}
    assert kit.changes("refresh") == {"same": 9}
    assert kit.changes("up", size=10, name="network") == {"same": 7, "update": 2}
    assert len(kit.nodes.there) == 10
    moved = kit.run("preview", size=10, name="network", domain=OTHER_DOMAIN)
    assert moved.change_summary == {"replace": 2, "same": 7}
    assert "computeClusterId" in moved.stdout
    assert kit.changes("destroy") == {"delete": 9}
    assert kit.nodes.there == set()


@pytest.mark.parametrize(
    ("collection", "type_", "lines"),
    [
        (
            "clusters",
            "Cluster",
            [
                "gone, made anew: Cluster cluster, NodePool gpu",
                "stays: ComputeCluster rdma, NetworkSecurityGroup group, 2 x Subnet, Vcn vcn",
            ],
        ),
        (
            "nodePools",
            "NodePool",
            [
                "gone, made anew: NodePool gpu",
                "stays: Cluster cluster, ComputeCluster rdma, NetworkSecurityGroup group, 2 x Subnet, Vcn vcn",
            ],
        ),
    ],
)
def test_what_is_deleted_outside_pulumi_is_created_again_and_the_rest_is_kept(
    deployed: Deploy, collection: str, type_: str, lines: list[str]
):
    kit = deployed(_program)
    before = {kind: kit.ocid_of(kind) for kind in ("Vcn", "Cluster", "NodePool")}
    kit.delete_in_oci(collection, type_)
    assert list(kit.forget_losses().lines()) == lines
    lost = ("Cluster", "NodePool") if type_ == "Cluster" else ("NodePool",)
    assert kit.changes("up") == {"same": 9 - len(lost), "create": len(lost)}
    assert {kind for kind in before if kit.ocid_of(kind) != before[kind]} == {*lost}
    assert kit.nodes.there == {f"gpu-{index}" for index in range(9)}


@pytest.mark.parametrize(
    ("launch", "kind"),
    [
        ("compute-cluster-instances", "Instance"),
        pytest.param("cluster-network", "ClusterNetwork", marks=pytest.mark.nightly),
    ],
)
def test_instances_of_a_deleted_cluster_are_launched_again_for_the_new_cluster(
    deployed: Deploy, launch: str, kind: str
):
    how: Any = {"launch": launch}
    pools = deployed(**how)
    before = {line["id"] for line in pools.journal(kind)}
    pools.delete_in_oci("clusters", "Cluster")
    losses = pools.forget_losses(**how)
    assert {item["id"] for item in losses.nodes} == before
    pools.run("up", **how)
    assert {line["id"] for line in pools.journal(kind)} - before
    assert set(pools.changes("up", **how)) == {"same"}


def test_pulumis_error_for_a_request_that_oci_refuses_has_ocis_message(kit: Kit):
    with pytest.raises(automation.CommandError, match="it is not within the CIDRs of the VCN"):
        kit.run("up", cidr="10.9.0.0/20")
    assert kit.changes("up")["create"] >= 1
    assert len(kit.nodes.there) == 9


NODE_POOL_STATES = (
    *("CREATING", "ACTIVE", "UPDATING", "DELETING", "DELETED", "FAILED", "INACTIVE", "NEEDS_ATTENTION"),
)
"""OCI API reference, NodePool."""


def _many_pools() -> Callable[[], None]:
    """A pool for each state that one can have, and a cluster network."""

    def program() -> None:
        import pulumi_oci as oci  # noqa: PLC0415 - half a second of import time

        place: Any = {"compartment_id": COMPARTMENT}
        vcn = oci.core.Vcn("vcn", **place, cidr_blocks=["10.0.0.0/16"])
        subnet = oci.core.Subnet("workers", **place, vcn_id=vcn.id, cidr_block="10.0.32.0/19")
        endpoint: Any = {"subnet_id": subnet.id}
        cluster = oci.containerengine.Cluster(
            "cluster", **place, vcn_id=vcn.id, kubernetes_version=VERSION, name="prod", endpoint_config=endpoint
        )
        where = [{"availability_domain": DOMAIN, "subnet_id": subnet.id}]
        for state in NODE_POOL_STATES:
            nodes: Any = {"size": 1, "placement_configs": where}
            shape: Any = {"node_shape": "BM.GPU.MI300X.8", "node_config_details": nodes}
            oci.containerengine.NodePool(state, cluster_id=cluster.id, **place, name=state, **shape)
        launch: Any = {
            "shape": "BM.GPU.MI300X.8",
            "source_details": {"source_type": "image", "image_id": "ocid1.image.x"},
        }
        details: Any = {"instance_type": "compute", "launch_details": {**place, **launch}}
        configuration = oci.core.InstanceConfiguration("configuration", **place, instance_details=details)
        network: Any = {"availability_domain": DOMAIN, "primary_subnet_id": subnet.id}
        machines: Any = [{"instance_configuration_id": configuration.id, "size": 1}]
        oci.core.ClusterNetwork("network", **place, instance_pools=machines, placement_configuration=network)

    return program


def test_a_pool_whose_creation_failed_blocks_no_update_whatever_state_oci_recorded(kit: Kit):
    pools = replace(kit, program=_many_pools)
    late: list[Any] = [{"resource": "NodePool", "name": state, "state": state} for state in NODE_POOL_STATES]
    late += [{"resource": "ClusterNetwork", "state": "TERMINATED"}]
    kit.break_oci(json.dumps({"faults": [{**rule, "fault": "late-failure", "times": 1} for rule in late]}))
    failed = {*NODE_POOL_STATES, "network"}
    for error in ("creating urn:", "404-NotAuthorizedOrNotFound"):
        with pytest.raises(automation.CommandError):
            pools.run("up", tries_all=True)
        gone = {item["urn"].rpartition("::")[2]: item for item in pools.resources() if is_gone_after_failure(item)}
        assert {name for name, item in gone.items() if error in item["initErrors"][0]} == failed
    assert pools.changes("up", reads_first=True)["create"] == len(failed)
    assert set(pools.changes("up")) == {"same"}


def test_a_node_pool_that_could_not_grow_is_repaired_by_the_next_update(deployed: Deploy):
    kit = deployed(_program)
    kit.break_oci("faults: [{resource: NodePool, operation: update, fault: out-of-host-capacity, times: 1}]")
    with pytest.raises(automation.CommandError, match="Out of host capacity"):
        kit.run("up", size=10)
    assert not any(is_gone_after_failure(item) for item in kit.resources())
    assert kit.changes("up", size=10) == {"same": 8, "update": 1}
    assert len(kit.nodes.there) == 10


def test_the_drift_report_marks_drift_that_an_update_would_fix_by_a_replacement(deployed: Deploy):
    kit = deployed(_program)
    state = kit.stack.export_stack()
    (api,) = [item for item in (state.deployment or {})["resources"] if item["urn"].endswith("::api")]
    for part in ("inputs", "outputs"):
        api[part]["prohibitPublicIpOnVnic"] = False
    kit.stack.import_stack(state)
    assert kit.drift() == [
        "Subnet api: prohibitPublicIpOnVnic was False and is True; an update after `pulumi refresh` would replace it:"
        " change it back where it was changed"
    ]


def test_the_drift_report_lists_only_changes_in_oci_and_does_not_change_the_state(deployed: Deploy):
    kit = deployed(_program)
    assert kit.drift() == []
    kit.change_behind_the_engine(size=10, name="other")
    before = kit.resources()
    undone = "an update after `pulumi refresh` makes it what the stack file says"
    assert sorted(kit.drift()) == [
        f"NodePool gpu: nodeConfigDetails.size was 9 and is 10; {undone}",
        f"Vcn vcn: displayName was 'net' and is 'other'; {undone}",
    ]
    assert kit.resources() == before
    kit.run("up", reads_first=True)
    assert kit.drift() == []
