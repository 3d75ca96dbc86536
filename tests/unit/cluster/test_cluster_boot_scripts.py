import base64
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.catalogue.cluster import cloud_init
from llmd_oke.cluster.instance_metadata import Boot, user_data

STEP = re.compile(r"^step ([a-z-]+) <<'LLMD_OKE_END_OF_STEP'\n(.*?)^LLMD_OKE_END_OF_STEP$", re.MULTILINE | re.DOTALL)
PLACES = re.compile(r"(?<!\w)/(etc|opt|var|proc|sys|dev/console)\b")
REAL = ("bash", "base64", "cat", "chmod", "grep", "install", "mv", "rm", "tail", "tee")
BASH = shutil.which("bash") or "bash"

NAME = r"[^oci-oke-node-all-1\.34\.2$]"
PACKAGE = f"[install]{NAME}"
SOURCES = "etc/apt/sources.list.d/oke-node-client.sources"
INSTALLS_OKE = (
    'if [[ $* == *install* ]]; then printf "#!$BASH\\n" >"$ROOT/bin/oke"; chmod 0755 "$ROOT/bin/oke"; fi\n'
    f'[[ ! -e "$ROOT/{SOURCES}" ]] || printf "%s\\n" "$(<"$ROOT/{SOURCES}")" >"$ROOT/sources"'
)
AUTHORITY = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMII\n").decode()


class Machine:
    """A machine's file system and its commands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bin", "etc/apt/sources.list.d", "opt", "var/run", "var/log", "dev", "metadata/identity"):
            (root / folder).mkdir(parents=True)
        for name in REAL:
            (root / "bin" / name).symlink_to(shutil.which(name) or name)
        (root / "calls").touch()
        self.write("etc/os-release", "ID=ubuntu\nVERSION_CODENAME=noble\n")
        self.write("metadata/identity/cert.pem", "-----BEGIN CERTIFICATE-----")
        self.command("sleep")
        self.command("curl", 'cat "$ROOT/metadata/${*: -1:1}" 2>/dev/null || exit 22')

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def command(self, name: str, body: str = "") -> None:
        call = f"printf '[%s]' \"$@\" | {{ printf '%s' {name}; cat; echo; }} >>\"$ROOT/calls\""
        shorter = 'set -- "${@//http:\\/\\/169.254.169.254\\/opc\\/v2\\//}"' if name == "curl" else ""
        self.write(f"bin/{name}", f"#!{BASH}\n{shorter}\n{call}\n{body}\n")
        (self.root / "bin" / name).chmod(0o755)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BASH, "-c", PLACES.sub(lambda match: f"{self.root}{match[0]}", script)],
            env={"PATH": f"{self.root}/bin", "ROOT": str(self.root), "BASH": BASH},
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )

    def calls(self, of: str) -> list[str]:
        return [line.removeprefix(of) for line in self.read("calls").splitlines() if line.startswith(f"{of}[")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def step(name: str, *, self_managed: bool = False, file_storage: bool = False, taints: tuple[str, ...] = ()) -> str:
    boot = Boot(
        "gpu", "v1.34.2", taints, self_managed=self_managed, file_storage=file_storage, gpus=8, rdma_in_pods=True
    )
    return dict(STEP.findall(user_data(boot)))[name]


def out_of_time(script: str) -> str:
    return script.replace(f"SECONDS + {cloud_init().packages.timeout_s}", "SECONDS + 0")


class TestNumaBalancing:
    def test_boot_disables_automatic_numa_balancing(self, machine: Machine):
        machine.write("proc/sys/kernel/numa_balancing", "1\n")
        machine.command("sysctl")
        assert machine.run(step("numa-balancing")).returncode == 0
        file = "etc/sysctl.d/90-llmd-oke-numa-balancing.conf"
        assert machine.read(file) == "kernel.numa_balancing = 0\n"
        assert machine.calls("sysctl") == [f"[--quiet][--load={machine.root}/{file}]"]

    def test_a_kernel_without_numa_balancing_boots(self, machine: Machine):
        assert machine.run(step("numa-balancing")).returncode == 0


EXCLUSIVE = "netns exclusive copy-on-fork on"


class TestRdmaNamespaces:
    """Against a kernel that refuses a mode while services have namespaces of their own."""

    FILE = "etc/modprobe.d/90-llmd-oke-rdma.conf"

    def kernel(self, machine: Machine, *, refusals: int = 0, mode: str = "netns shared copy-on-fork on") -> None:
        machine.write("mode", mode)
        machine.write("refusals", "x" * refusals)
        machine.command(
            "rdma",
            'if [[ $2 == show ]]; then cat "$ROOT/mode"; exit; fi\n'
            'left=$(<"$ROOT/refusals")\n'
            'if [[ -n $left ]]; then printf "%s" "${left:1}" >"$ROOT/refusals"\n'
            'echo "error: Device or resource busy" >&2; exit 1; fi\n'
            f'printf "{EXCLUSIVE}" >"$ROOT/mode"',
        )
        machine.command("update-initramfs")

    def test_rdma_devices_become_exclusive_to_a_network_namespace_across_reboots(self, machine: Machine):
        self.kernel(machine)
        assert machine.run(step("rdma-namespaces")).returncode == 0
        assert machine.read("mode") == EXCLUSIVE
        assert machine.read(self.FILE) == "options ib_core netns_mode=0\n"
        assert machine.calls("update-initramfs") == ["[-u]"]

    def test_boot_repeats_making_rdma_devices_exclusive_until_the_kernel_accepts_it(self, machine: Machine):
        self.kernel(machine, refusals=3)
        assert machine.run(step("rdma-namespaces")).returncode == 0
        assert len(machine.calls("sleep")) == 3

    def test_an_image_with_exclusive_rdma_devices_is_left_unchanged(self, machine: Machine):
        self.kernel(machine, mode=EXCLUSIVE)
        assert machine.run(step("rdma-namespaces")).returncode == 0
        assert machine.calls("rdma") == ["[system][show]"]

    def test_a_node_whose_rdma_devices_stay_shared_does_not_join(self, machine: Machine):
        self.kernel(machine, refusals=100)
        limit = f"SECONDS + {cloud_init().rdma_namespaces.timeout_s}"
        script = step("rdma-namespaces")
        assert limit in script
        ended = machine.run(script.replace(limit, "SECONDS + 0"))
        assert ended.returncode == 1
        assert "shared by all network namespaces" in ended.stderr

    def test_the_boot_script_keeps_rdma_devices_shared_unless_pods_get_their_own(self):
        steps = dict(STEP.findall(user_data(Boot("gpu", "v1.34.2"))))
        assert "rdma-namespaces" not in steps


class TestCpuGovernor:
    FILE = "etc/tmpfiles.d/90-llmd-oke-governor.conf"

    def test_processors_use_the_performance_governor_now_and_after_each_boot(self, machine: Machine):
        machine.command("systemd-tmpfiles")
        assert machine.run(step("cpu-governor")).returncode == 0
        assert machine.read(self.FILE).endswith("/cpu*/cpufreq/scaling_governor - - - - performance\n")
        assert machine.calls("systemd-tmpfiles") == [f"[--create][{machine.root}/{self.FILE}]"]

    def test_a_governor_that_cannot_be_set_is_reported_and_the_node_joins(self, machine: Machine):
        machine.command("systemd-tmpfiles", "exit 73")
        ended = machine.run(step("cpu-governor"))
        assert (ended.returncode, "could not be set" in ended.stderr) == (0, True)


class TestNodeChecks:
    FOLDER = "var/lib/node_exporter/textfile_collector"

    def test_the_node_checks_itself_each_minute_from_its_first_boot_on(self, machine: Machine):
        machine.command("systemctl")
        (machine.root / "etc/systemd/system").mkdir(parents=True)
        assert machine.run(step("node-checks")).returncode == 0
        assert machine.calls("systemctl") == ["[daemon-reload]", "[enable][--now][llmd-oke-checks.timer]"]
        service = machine.read("etc/systemd/system/llmd-oke-checks.service")
        assert f"ExecStart=/bin/bash {machine.root}/opt/llmd-oke/boot/node-checks.sh run\n" in service
        assert "OnUnitActiveSec=60\n" in machine.read("etc/systemd/system/llmd-oke-checks.timer")

    @pytest.fixture
    def sound(self, machine: Machine) -> Machine:
        """A node on which every check passes."""
        (machine.root / self.FOLDER).mkdir(parents=True)
        for index in range(8):
            machine.write(f"sys/bus/pci/drivers/amdgpu/0000:0{index}:00.0/vendor", "")
            machine.write(f"sys/class/net/rdma{index}/carrier", "1\n")
            machine.write(f"sys/devices/system/cpu/cpu{index}/cpufreq/scaling_governor", "performance\n")
        machine.command("wpa_cli", "echo wpa_state=COMPLETED; echo suppPortStatus=Authorized")
        return machine

    def codes(self, machine: Machine) -> dict[str, int]:
        script = step("node-checks").replace("${1-}", "run")
        ended = machine.run(script)
        assert (ended.returncode, ended.stderr) == (0, "")
        text = machine.read(f"{self.FOLDER}/llmd-oke.prom")
        assert text.count("oke_npd_check_last_run_timestamp_seconds{") == 4
        return {name: int(code) for name, code in re.findall(r'status_code\{check="([a-z-]+)"\} (\d)', text)}

    def test_a_node_without_faults_passes_each_of_its_health_checks(self, sound: Machine):
        assert self.codes(sound) == {"gpu-count": 0, "cpu-profile": 0, "rdmalink-stat": 0, "wpa-auth": 0}
        assert sound.calls("wpa_cli")[0] == "[-i][rdma0][status]"

    @pytest.mark.parametrize(
        ("answers", "code"),
        [
            ({"rdma3": "echo wpa_state=ASSOCIATING"}, 1),
            ({"rdma0": "exit 255", "rdma3": "echo suppPortStatus=Unauthorized"}, 1),
            ({"rdma0": "exit 255"}, 2),
            ({"*": "exit 255"}, 2),
        ],
        ids=["one unauthorized", "one unauthorized, one unknown", "one unknown", "all unknown"],
    )
    def test_an_unauthorized_rdma_port_fails_802_1x_and_one_without_a_state_is_unknown(
        self, sound: Machine, answers: dict[str, str], code: int
    ):
        said = {**answers, "*": answers.get("*", "echo suppPortStatus=Authorized")}
        cases = " ".join(f"{name}) {command};;" for name, command in said.items())
        sound.command("wpa_cli", f"case $2 in {cases} esac")
        assert self.codes(sound)["wpa-auth"] == code

    def test_a_processor_with_a_power_saving_governor_fails_its_health_check(self, sound: Machine):
        sound.write("sys/devices/system/cpu/cpu5/cpufreq/scaling_governor", "powersave\n")
        assert self.codes(sound)["cpu-profile"] == 1

    def test_a_missing_gpu_and_an_rdma_link_that_is_down_fail_their_checks(self, sound: Machine):
        shutil.rmtree(sound.root / "sys/bus/pci/drivers/amdgpu/0000:03:00.0")
        sound.write("sys/class/net/rdma7/carrier", "0\n")
        assert self.codes(sound) == {"gpu-count": 1, "cpu-profile": 0, "rdmalink-stat": 1, "wpa-auth": 0}

    def test_checks_of_rdma_links_are_unknown_on_a_node_without_network_devices(self, sound: Machine):
        shutil.rmtree(sound.root / "sys/class/net")
        assert self.codes(sound) == {"gpu-count": 0, "cpu-profile": 0, "rdmalink-stat": 2, "wpa-auth": 2}


class TestKernelModules:
    BLOCKED = "etc/modprobe.d/90-llmd-oke-blocked.conf"

    def test_kernel_modules_with_privilege_escalations_are_never_loaded(self, machine: Machine):
        machine.write("proc/modules", "ib_core 1 0 - Live\n")
        machine.command("modprobe")
        assert machine.run(step("kernel-modules")).returncode == 0
        modules = [module for fault in cloud_init().kernel_faults for module in fault.modules]
        assert set(modules) == {"esp4", "esp6", "rxrpc", "algif_aead"}
        assert machine.read(self.BLOCKED) == "".join(f"install {module} /bin/false\n" for module in modules)
        assert machine.calls("modprobe") == []

    def test_a_loaded_vulnerable_module_is_removed_or_reported_if_in_use(self, machine: Machine):
        machine.write("proc/modules", "esp4 1 0 - Live\nesp4_offload 1 0 - Live\nrxrpc 1 1 - Live\n")
        machine.command("modprobe", "[[ $2 != rxrpc ]]")
        ended = machine.run(step("kernel-modules"))
        assert (ended.returncode, machine.calls("modprobe")) == (0, ["[-r][esp4]", "[-r][rxrpc]"])
        assert "rxrpc is in use; it is blocked from the next boot on" in ended.stderr


class TestPackages:
    def test_packages_that_the_node_image_has_are_not_installed_at_boot(self, machine: Machine):
        for name in ("apt-get", "oke", "mount.nfs"):
            machine.command(name)
        assert machine.run(step("packages", file_storage=True)).returncode == 0
        assert machine.calls("apt-get") == []

    def test_installed_packages_depend_on_the_nodes_operating_system(self, machine: Machine):
        repository = machine.root / "opt/oke-node-client-packages/ubuntu-noble/kubernetes-1.34"
        (repository / "dists").mkdir(parents=True)
        machine.command("apt-get", INSTALLS_OKE)
        assert machine.run(step("packages")).returncode == 0
        assert f"URIs: file://{repository}\n" in machine.read("sources")
        update, install = machine.calls("apt-get")
        assert update.endswith("[Dir::Etc::sourceparts=-][-o][APT::Get::List-Cleanup=0][update]")
        assert install.endswith(PACKAGE)

    def test_oracles_repository_for_missing_packages_is_trusted_for_one_over_https_only(self, machine: Machine):
        machine.command("apt-get", INSTALLS_OKE)
        assert machine.run(step("packages")).returncode == 0
        repositories = cloud_init().packages.repositories
        assert (len(repositories), all(uri.startswith("https://") for uri in repositories)) == (2, True)
        assert f"URIs: {' '.join(f'{uri}/ubuntu-noble/kubernetes-1.34' for uri in repositories)}\n" in machine.read(
            "sources"
        )
        assert "Trusted: yes" in machine.read("sources")
        assert {call.partition("[install]")[2] for call in machine.calls("apt-get") if "[install]" in call} == {NAME}
        assert not (machine.root / SOURCES).exists()

    def test_a_failed_installation_is_repeated_even_if_package_lists_cannot_be_updated(self, machine: Machine):
        fails_once = 'if [[ $* == *install* && ! -e $ROOT/failed ]]; then >"$ROOT/failed"; exit 100; fi\n'
        machine.command("apt-get", f"[[ $* != *update* ]] || exit 100\n{fails_once}{INSTALLS_OKE}")
        assert machine.run(step("packages")).returncode == 0
        calls = [call.split("[-o]")[-1].partition("]")[2] for call in machine.calls("apt-get")]
        assert calls == ["[update]", PACKAGE, "[update]", PACKAGE]

    def test_installation_waits_for_locks_of_the_package_manager(self, machine: Machine):
        machine.command("sleep", '>"$ROOT/free"')
        machine.command("apt-get", f"[[ -e $ROOT/free ]] || exit 100\n{INSTALLS_OKE}")
        assert machine.run(step("packages")).returncode == 0
        assert machine.calls("sleep") == [f"[{cloud_init().packages.pause_s}]"]

    def test_an_installation_past_its_time_limit_fails_and_leaves_no_unsigned_repository(self, machine: Machine):
        machine.command("apt-get", "exit 100")
        ended = machine.run(out_of_time(step("packages")))
        assert (ended.returncode, machine.calls("sleep")) == (1, [])
        assert "oke is missing and could not be installed" in ended.stderr
        assert not (machine.root / SOURCES).exists()

    def test_a_package_installation_without_the_expected_command_counts_as_failed(self, machine: Machine):
        machine.command("apt-get")
        assert machine.run(out_of_time(step("packages"))).returncode == 1

    def test_nodes_that_mount_file_storage_install_nfs(self, machine: Machine):
        machine.command("oke")
        machine.command("apt-get", INSTALLS_OKE.replace("bin/oke", "bin/mount.nfs"))
        assert machine.run(step("packages", file_storage=True)).returncode == 0
        assert [call.endswith("[install][nfs-common]") for call in machine.calls("apt-get")] == [True]

    def test_systems_other_than_ubuntu_install_nothing_and_need_nfs_in_the_image(self, machine: Machine):
        machine.write("etc/os-release", "ID=ol\n")
        assert machine.run(step("packages")).returncode == 0
        ended = machine.run(step("packages", file_storage=True))
        assert ended.returncode == 1
        assert "the image has no mount.nfs" in ended.stderr


class TestJoining:
    @pytest.fixture
    def machine(self, machine: Machine) -> Machine:
        machine.write("metadata/instance/metadata/apiserver_host", "10.140.0.5")
        machine.write("metadata/instance/metadata/cluster_ca_cert", AUTHORITY)
        return machine

    @pytest.mark.parametrize(
        ("changes", "arguments"),
        [
            ({}, ""),
            ({"taints": ("a=b:NoSchedule",)}, "[--kubelet-extra-args][--register-with-taints=a=b:NoSchedule]"),
            ({"self_managed": True}, f"[--apiserver-host][10.140.0.5][--ca][{AUTHORITY}]"),
        ],
        ids=["pool", "pool with taints", "self-managed"],
    )
    def test_nodes_join_the_cluster_with_the_command_oke_bootstrap(
        self, machine: Machine, changes: dict[str, Any], arguments: str
    ):
        machine.command("oke")
        assert machine.run(step("join", **changes)).returncode == 0
        assert machine.calls("oke") == [f"[bootstrap]{arguments}"]

    def test_without_the_oke_program_a_pools_node_runs_the_script_in_its_metadata(self, machine: Machine):
        script = base64.b64encode(b'echo "joins${1-}" >"$ROOT/joined"').decode()
        machine.write("metadata/instance/metadata/oke_init_script", script)
        assert machine.run(step("join")).returncode == 0
        assert machine.read("joined") == "joins\n"

    def test_a_self_managed_node_writes_its_clusters_certificate(self, machine: Machine):
        machine.command("oke")
        machine.run(step("join", self_managed=True))
        assert machine.read("etc/oke/oke-apiserver") == "10.140.0.5"
        assert machine.read("etc/kubernetes/ca.crt") == "-----BEGIN CERTIFICATE-----\nMII\n"

    def test_without_the_oke_program_a_self_managed_node_runs_the_images_script(self, machine: Machine):
        machine.write("etc/oke/oke-install.sh", 'echo "$*" >"$ROOT/joined"')
        machine.run(step("join", self_managed=True, taints=("a=:NoSchedule",)))
        expected = f"--apiserver-endpoint 10.140.0.5 --kubelet-ca-cert {AUTHORITY}"
        assert machine.read("joined") == f"{expected} --kubelet-extra-args --register-with-taints=a=:NoSchedule\n"

    def test_a_self_managed_node_without_a_cluster_address_reports_it(self, machine: Machine):
        machine.command("oke")
        (machine.root / "metadata/instance/metadata/cluster_ca_cert").unlink()
        ended = machine.run(step("join", self_managed=True))
        assert (ended.returncode, machine.calls("oke")) == (1, [])
        assert "the metadata of the instance have no cluster_ca_cert" in ended.stderr

    def test_a_node_repeats_a_failed_attempt_to_join_its_cluster(self, machine: Machine):
        machine.command("sleep", '>"$ROOT/later"')
        machine.command("oke", "[[ -e $ROOT/later ]]")
        assert machine.run(step("join")).returncode == 0
        assert len(machine.calls("oke")) == 2


def test_a_failing_boot_step_ends_the_boot_and_is_reported_on_the_console(machine: Machine):
    machine.write("etc/os-release", "echo 'no such system' >&2; exit 3")
    ended = machine.run(user_data(Boot("cpu", "v1.34.2")))
    assert ended.returncode == 1
    assert machine.read("dev/console") == "no such system\nllmd-oke: step packages failed\n"
