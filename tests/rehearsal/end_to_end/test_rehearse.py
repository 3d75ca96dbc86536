"""The main job through the command line, with everything real that a rehearsal has: a stack that its smoke benchmark
judges as a part of the deployment, that is left alone, changed and looked at; then its nodes, sound ones and one for
each fault that nodes can have in a rehearsal, by the command that tests them; then servers with faults.
"""

import json
import re
import subprocess
import sys
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llmd_bench.report_format import BenchmarkReport
from llmd_oke.values import read_yaml
from llmd_rehearsal.cluster_plan import SIMULATED_PLUGIN
from llmd_rehearsal.namespaces import identity_of, members_of
from llmd_rehearsal.oci_plugin.faults import NODE, Fault, FaultRule, write_rules
from user_project import PLANTED, TIME_SCALE, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK, NODES = "disaggregated", 11
FULL = "full"
POOLS = [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": NODES}]
OVERRIDE = {"quickReduce": "INT4"}
FAULTS = {"LLMD_OKE_REHEARSED_FAILED_PREFILL_PERCENT": "50", "LLMD_OKE_REHEARSED_CORRUPT_KV_PERCENT": "60"}
"""Half of all prefills fail, and of what prefill servers hand over most is corrupted."""

PREFILL = re.compile(r"Deployment gpt-oss-120b-[0-9a-f]{8}-prefill")
"""The unit's version is part of its objects' names."""

SCALE_BY_HAND = """
from lightkube import Client
from lightkube.resources.apps_v1 import Deployment
from lightkube.types import PatchType
client = Client(field_manager="kubectl")
[decode] = [each for each in client.list(Deployment, namespace="*") if each.metadata.name.endswith("-decode")]
own = {"namespace": decode.metadata.namespace, "patch_type": PatchType.MERGE}
client.patch(Deployment.Scale, decode.metadata.name, {"spec": {"replicas": 3}}, **own)
"""
"""What `kubectl scale` does to the decode servers."""


@dataclass(frozen=True)
class Life:
    """Operations of a disaggregated stack, in order: one whose benchmark misses a limit that nothing meets, one without
    it as continuous integration makes it, left alone, scaled by hand, and changed after a preview; what the second one
    changed, and the machine's network links before.
    """

    links: list[str]
    missed: Ended
    made: Ended
    changes: dict[str, int]
    left_alone: Ended
    scaled: Ended
    before: Ended
    changed: Ended


def write(project: Project, **changes: Any) -> None:
    project.write(STACK, gpuPools=POOLS, override=OVERRIDE, **changes)


@pytest.fixture(scope="module")
def life(project: Project) -> Life:
    links = _links()
    own = ("--stack", STACK)
    rehearse = ("rehearse", *own, "--json")
    write(project, smoke={"requests": 8, "concurrency": 2, "thresholds": {"maxTtftP95Ms": 0.001}})
    missed = project.rehearse(STACK)
    write(project)
    made = project.command("pipeline", "deploy", *own, "--rehearse")
    changes = json.loads((project.folder / ".rehearsal" / STACK / "engine.json").read_text())["changes"]
    left_alone = project.command(*rehearse)
    project.inside(STACK, sys.executable, "-c", SCALE_BY_HAND)
    scaled = project.command(*rehearse, "--no-benchmark")
    engine = {"blockSize": 64, "env": {"VLLM_LOGGING_LEVEL": "DEBUG"}}
    write(project, models=[model(topology="1p-tp1-2d-tp2", engine=engine)])
    before = project.command("pipeline", "preview", *own, "--rehearse")
    return Life(links, missed, made, changes, left_alone, scaled, before, project.command(*rehearse))


def test_a_missed_limit_of_the_smoke_benchmark_fails_the_update_and_is_named(life: Life) -> None:
    assert life.missed.status == 1
    assert "failed its smoke benchmark: TTFT p95" in " ".join(life.missed.errors.split())
    assert '{"message"' not in life.missed.errors
    assert "Traceback" not in life.missed.errors


def test_a_failed_smoke_job_still_publishes_its_benchmark_tables_and_report(life: Life, project: Project) -> None:
    assert "FAIL │ TTFT p95" in life.missed.errors
    assert list((project.folder / "reports" / STACK).glob("*/summary.json"))


def test_after_a_failed_benchmark_models_stay_and_only_the_benchmark_is_rerun(life: Life) -> None:
    assert life.made.status == 0, life.made.errors
    assert life.changes.get("create", 0) == 0
    assert life.changes["replace"] <= 3  # program, facts and Job


def test_the_smoke_jobs_report_says_what_was_simulated_and_which_versions_ran(life: Life) -> None:
    (smoke,) = life.left_alone.document["smoke"]
    assert smoke["provenance"]["numbers"] == "calibrated"
    assert "vLLM" in smoke["provenance"]["simulated"]
    assert smoke["provenance"]["time_scale"] == float(TIME_SCALE)


def test_the_passed_accuracy_of_an_overridden_vllm_image_is_in_passport_json(life: Life, project: Project) -> None:
    (smoke,) = life.left_alone.document["smoke"]
    (accuracy,) = [check for check in smoke["checks"] if check["name"] == "accuracy"]
    assert (accuracy["value"], accuracy["limit"], accuracy["passed"]) == (1.0, 0.95, True)
    accuracies = [passport["accuracy"] for passport in passports(project)]
    assert (1.0, 80) in [(accuracy["score"], accuracy["questions"]) for accuracy in accuracies]


def passports(project: Project) -> list[dict[str, Any]]:
    """The passports of all deployments, in order."""
    return [
        json.loads(file.read_text()) for file in sorted((project.folder / "reports" / STACK).glob("*/passport.json"))
    ]


def test_the_pipeline_commands_preview_and_deploy_a_stack_in_a_rehearsal(life: Life) -> None:
    assert [life.made.status, life.before.status] == [0, 0], life.made.errors
    assert PREFILL.search(life.before.output)
    assert "Remote prefill" in life.made.output


def test_a_pipeline_preview_of_a_refused_update_exits_with_1_and_the_reason(project: Project) -> None:
    project.write("bad-ci", release="llm-d-99")
    ended = project.command("pipeline", "deploy", "--stack", "bad-ci", "--rehearse")
    assert ended.status == 1
    assert "release" in ended.errors


def test_a_rehearsal_deploys_the_model_of_a_stack_file_and_benchmarks_it(life: Life) -> None:
    assert life.made.status == 0, life.made.errors
    (smoke,) = life.left_alone.document["smoke"]
    assert smoke["passed"]
    assert smoke["performance"]["failures"] == 0


def test_all_prompts_of_the_benchmark_are_prefilled_remotely(life: Life) -> None:
    (smoke,) = life.left_alone.document["smoke"]
    assert smoke["remote_prefill"]["share"] == pytest.approx(1.0)
    assert smoke["remote_prefill"]["consistent"]


def test_the_benchmark_report_is_stored_and_says_which_parts_were_simulated(life: Life, project: Project) -> None:
    (file,) = (project.folder / "reports" / STACK / "latest").glob("benchmark_report_v0.2*")
    report = BenchmarkReport.model_validate(read_yaml(file))
    assert report.version == "0.2"
    assert "vLLM" in " ".join(life.left_alone.document["simulated"])


def test_a_deployments_passport_json_has_remote_prefill_cold_start_and_images(life: Life, project: Project) -> None:
    passport = next(passport for passport in passports(project) if passport["smoke_passed"])
    assert passport["remote_prefill"]["share"] == pytest.approx(1.0)
    assert passport["cold_start"]["first_token_s"] > 0
    assert {"decode/vllm", "prefill/vllm", "router/epp"} <= passport["images"].keys()


def test_no_planted_secret_is_in_reports_passports_state_or_logs(life: Life, project: Project) -> None:
    files = [file for file in project.folder.rglob("*") if file.is_file() and not file.is_symlink()]
    names = {file.name for file in files}
    assert {"passport.json", "rows.jsonl", "summary.json", "cluster.json"} <= names
    texts = {str(file): file.read_bytes() for file in files}
    texts["said"] = "".join(item.output + item.errors for item in (life.made, life.scaled, life.changed)).encode()
    assert [
        (place, name) for place, text in texts.items() for name, value in PLANTED.items() if value.encode() in text
    ] == []


def test_no_process_of_the_cluster_has_a_planted_secret_in_arguments_or_environment(
    life: Life, project: Project
) -> None:
    record = json.loads((project.folder / ".rehearsal" / STACK / "cluster.json").read_text())
    processes = members_of(record["namespaces"])
    assert len(processes) > 10
    for pid in processes:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
            assert [name for name, value in PLANTED.items() if value.encode() in text] == []


def test_updating_an_unchanged_stack_in_a_rehearsal_changes_no_resource(life: Life) -> None:
    assert life.left_alone.status == 0, life.left_alone.errors
    assert set(life.left_alone.document["update"]["changes"]) == {"same"}


def test_updating_an_unchanged_stack_runs_no_benchmark(life: Life, project: Project) -> None:
    _missed, made, *_ = sorted((project.folder / "reports" / STACK).glob("*/summary.json"))
    (smoke,) = life.left_alone.document["smoke"]
    assert smoke["load"]["run"] == json.loads(made.read_text())["load"]["run"]


def test_a_changed_topology_is_deployed_as_new_servers_and_passes_the_benchmark(life: Life) -> None:
    assert life.changed.status == 0, life.changed.errors
    assert {"create", "delete"} <= life.changed.document["update"]["changes"].keys()
    (smoke,) = life.changed.document["smoke"]
    assert smoke["topology"] == "1p-tp1-2d-tp2"
    assert smoke["passed"]


def test_a_manual_scale_of_a_deployment_is_reported_and_reverted(life: Life) -> None:
    assert life.scaled.status == 0, life.scaled.errors
    update = life.scaled.document["update"]
    (output,) = update["changed_by_hand"]
    assert "-decode: spec.replicas was 1 and is 3, set by kubectl (scale)" in output
    assert f"changed by hand: {output}" in life.scaled.errors
    assert update["changes"]["update"] == 1


def test_a_rehearsal_reports_that_its_kubernetes_plug_in_is_simulated(life: Life) -> None:
    assert life.left_alone.document["kubernetes_plugin"]["real"] is False
    assert SIMULATED_PLUGIN in life.left_alone.document["simulated"]
    assert life.left_alone.document["update"]["plugins"].keys() == {"kubernetes", "oci"}


def test_a_llm_d_release_without_built_programs_is_rehearsed_with_the_nearest_one(life: Life) -> None:
    document = life.left_alone.document
    assert (document["asked_release"], document["release"]) == ("llm-d-0.9.0", "llm-d-0.6.0")
    assert document["plan"]["release"] == "llm-d-0.9.0"
    differing = {difference["name"].split(" ")[0] for difference in document["release_differences"]}
    assert {"Deployment", "ConfigMap", "Container"} <= differing


def test_an_invalid_stack_file_is_refused_before_a_rehearsal_creates_anything(project: Project) -> None:
    project.write(
        "bad",
        release="llm-d-9",
        models=[model(topology="1p-tp2-1d-tp1", workload={"inputTokens": 200000, "outputTokens": 1})],
    )
    ended = project.rehearse("bad")
    assert ended.status == 1
    assert "Traceback" not in ended.errors
    for path in ("release", "models[0].topology", "models[0].workload"):
        assert path in ended.errors
    assert not (project.folder / ".rehearsal" / "bad").exists()


@dataclass(frozen=True)
class Look:
    """Answers of `status` about a stack that is left alone, and one whose decode servers somebody has taken away, the
    files of `support` by their paths, and what `doctor` finds in the sound stack and in that archive."""

    healthy: Ended
    screen: Ended
    harmed: Ended
    support: dict[str, str]
    doctor: tuple[Ended, Ended]


@pytest.fixture(scope="module")
def look(life: Life, project: Project) -> Look:
    assert life.changed.status == 0, life.changed.errors
    words = ("status", "--stack", STACK, "--rehearse", "--every", "1")
    healthy, screen = project.command(*words, "--json"), project.command(*words)
    file = project.folder / "support.tar.gz"
    packed = project.command("support", "--stack", STACK, "--rehearse", "--output", str(file))
    assert packed.status == 0, packed.errors
    doctor = project.command("doctor", "--stack", STACK, "--rehearse", "--json")
    of_archive = project.command("doctor", "--from", str(file), "--json")
    project.inside(STACK, sys.executable, "-c", SCALE_BY_HAND.replace('"replicas": 3', '"replicas": 0'))
    with tarfile.open(file) as archive:
        members = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        files = {name: content.read().decode() for name, content in members.items() if content}
    return Look(healthy, screen, project.command(*words, "--json"), files, (doctor, of_archive))


def test_the_status_of_a_rehearsed_stack_fits_one_screen(look: Look) -> None:
    assert look.screen.status == 0, look.screen.output
    assert "\nhealthy\n" in look.screen.output
    assert "\x1b" not in look.screen.output
    assert len(look.screen.output.splitlines()) <= 24


def test_the_status_shows_servers_gpus_images_and_who_changed_them(look: Look) -> None:
    document = look.healthy.document
    assert (look.healthy.status, document["symptoms"]) == (0, [])
    ready = {group["role"]: (group["ready"], group["desired"]) for group in document["servers"]}
    assert ready == {"prefill": (1, 1), "decode": (2, 2), "router": (1, 1), "front door": (2, 2)}
    assert [pool["used_gpus"] for pool in document["nodes"] if pool["name"] == "mi300x"] == [5]
    assert document["models"][0]["unread"] == {}
    assert document["basis"] == "calibrated"
    assert {"decode/vllm", "prefill/vllm", "router/epp"} <= document["images"].keys()


def test_the_status_lists_a_model_without_ready_decode_servers_first(look: Look) -> None:
    worst, *_ = look.harmed.document["symptoms"]
    assert (look.harmed.status, worst["severity"]) == (1, "outage")
    assert "no decode server is ready" in worst["what"]


def test_the_support_archive_has_logs_of_all_servers_and_no_planted_secret(look: Look) -> None:
    logs = {path.partition("/logs/")[2] for path in look.support if "/logs/" in path}
    assert {"vllm.log", "kube-apiserver.log"} <= logs
    assert len([path for path in logs if path.startswith("pods/llm-d/") and path.endswith("/routing-proxy.log")]) >= 2
    assert [
        (path, name) for path, text in look.support.items() for name, value in PLANTED.items() if value in text
    ] == []


def test_doctor_finds_no_known_fault_in_a_sound_stack_nor_in_its_archive(look: Look) -> None:
    for ended in look.doctor:
        assert (ended.status, ended.document["findings"]) == (0, []), ended.errors
        assert ended.document["logs"] > 10
        assert ended.document["programs"] == 4  # a prefill server, two decode servers, and a router


NODE_FAULTS = (
    *(Fault.DEAD_GPU, Fault.WRONG_GID, Fault.MISSING_VIRTUAL_FUNCTION, Fault.SLOW_LINK),
    *(Fault.SLOW_GPU, Fault.MISSING_DISK),
)


@dataclass(frozen=True)
class Acceptances:
    """Answers of the command about sound nodes, nodes with a fault each, and one of these once it is sound again;
    and the taints that nodes had before the last."""

    sound: Ended
    faulty: Ended
    by_fault: dict[Fault, str]
    tainted: set[str]
    again: Ended
    tainted_after: set[str]


def accept(project: Project, *options: str) -> Ended:
    return project.command("rehearse", "run", "--stack", STACK, "--", "llmd-oke", "accept", "-s", STACK, *options)


def ask(project: Project, expression: str) -> Any:
    """The value of an expression over the cluster's nodes and pods."""
    code = (
        "import json, os, lightkube; from lightkube.resources.core_v1 import Node, Pod\n"
        "config = lightkube.KubeConfig.from_file(os.environ['KUBECONFIG']).get()\n"
        "client = lightkube.Client(config, trust_env=False)\n"
        "nodes, pods = list(client.list(Node)), list(client.list(Pod, namespace='llm-d'))\n"
        f"print(json.dumps({expression}))"
    )
    asked = project.inside(STACK, sys.executable, "-c", code)
    return json.loads(asked.output.splitlines()[-1])


def tainted(project: Project) -> set[str]:
    """The nodes with the taint of acceptance."""
    has_taint = "any(t.key == 'llmd-oke/acceptance' for t in n.spec.taints or [])"
    return set(ask(project, f"[n.metadata.name for n in nodes if {has_taint}]"))


def serving(project: Project) -> list[str]:
    """The nodes of the model's servers, without those of servers that end."""
    stays = "not p.metadata.deletionTimestamp and 'amd.com/gpu' in (p.spec.containers[0].resources.limits or {})"
    return ask(project, f"[p.spec.nodeName for p in pods if {stays}]")


@pytest.fixture(scope="module")
def runs(project: Project, look: Look) -> Acceptances:
    assert look
    busy = serving(project)
    free = [name for name in (f"mi300x-{number}" for number in range(NODES)) if name not in busy]
    sound = accept(project, "--json", *(word for name in (busy[0], *free[-2:]) for word in ("--node", name)))
    assert sound.status == 0, sound.output + sound.errors
    by_fault = dict(zip(NODE_FAULTS, free, strict=False))
    faults = project.folder / ".rehearsal" / STACK / "oci-faults.yaml"
    write_rules(faults, [FaultRule(resource=NODE, name=name, operation="*", fault=f) for f, name in by_fault.items()])
    faulty = accept(project, "--json")
    before = tainted(project)
    write_rules(faults, [])
    again = accept(project, "--node", by_fault[Fault.DEAD_GPU])
    return Acceptances(sound, faulty, by_fault, before, again, tainted(project))


def pool_of(ended: Ended) -> dict[str, Any]:
    return ended.document["pools"][0]


def test_node_acceptance_passes_sound_nodes_and_does_not_test_the_node_that_serves(runs: Acceptances) -> None:
    pool = pool_of(runs.sound)
    assert {result["verdict"] for result in pool["results"]} == {"passed"}
    assert len(pool["results"]) == 2
    ((_, reason),) = pool["untested"].items()
    assert "in use" in reason


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault.DEAD_GPU, "gpus: amd-smi sees 7 of 8 GPUs"),
        (Fault.WRONG_GID, "rdma: mlx5_2: GID 3 is"),
        (Fault.MISSING_VIRTUAL_FUNCTION, "rdma: 7 of 8 virtual functions are in the pod"),
        (Fault.SLOW_GPU, "memory: GPU 5: 1060 of at least 3710 GB/s"),
        (Fault.MISSING_DISK, "disks: 7 of 8 NVMe disks are whole"),
        (Fault.SLOW_LINK, "links: GPU 2 (mlx5_2): 12.5 of at least 40 GB/s at best"),
    ],
)
def test_node_acceptance_names_each_faulty_node_and_its_fault(runs: Acceptances, fault: Fault, text: str) -> None:
    results = {result["node"]: result for result in pool_of(runs.faulty)["results"]}
    assert results[runs.by_fault[fault]]["verdict"] == "failed"
    assert text in results[runs.by_fault[fault]]["reason"]


def test_node_acceptance_fails_and_taints_only_the_faulty_nodes(runs: Acceptances) -> None:
    failed = {result["node"] for result in pool_of(runs.faulty)["results"] if result["verdict"] == "failed"}
    assert failed == runs.tainted == set(runs.by_fault.values())
    assert runs.faulty.status == 1


def test_a_model_is_served_after_a_node_fails_acceptance_if_spare_nodes_suffice(runs: Acceptances) -> None:
    assert pool_of(runs.faulty)["problem"] is None


def test_a_node_that_passes_acceptance_after_a_failure_loses_its_taint(runs: Acceptances) -> None:
    repaired = runs.by_fault[Fault.DEAD_GPU]
    assert runs.tainted_after == runs.tainted - {repaired}
    assert all(len(line) <= 80 for line in runs.again.output.splitlines())


@dataclass(frozen=True)
class Faulty:
    """An update to servers with faults, and its summary."""

    ended: Ended
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def faulty(project: Project, runs: Acceptances) -> Faulty:
    """The last update of the stack."""
    assert runs
    smoke = {"requests": 16, "concurrency": 2}
    write(project, models=[model(engine={"env": FAULTS})], smoke=smoke)
    ended = project.rehearse(STACK)
    return Faulty(ended, json.loads((project.folder / "reports" / STACK / "latest" / "summary.json").read_text()))


def test_failed_prefills_are_counted_from_the_pickers_choices_and_finished_prefills(faulty: Faulty) -> None:
    """The routing sidecar counts nothing. Half of them fail: 500 of the prefill server, after which decode does it all
    (or which is the client's, with a later sidecar)."""
    assert faulty.ended.status == 1
    proof = faulty.summary["remote_prefill"]
    assert abs(proof["failed_prefills"] - 8) <= 1  # of sixteen, in turn at each of two servers
    chosen, finished = (proof["counters"][name]["change"] for name in ("router remote decisions", "prefill requests"))
    assert chosen - finished == proof["failed_prefills"]
    assert "remote prefill" in [check["name"] for check in faulty.summary["checks"] if not check["passed"]]


def test_an_overridden_image_that_changes_answers_fails_the_update(faulty: Faulty) -> None:
    (accuracy,) = [check for check in faulty.summary["checks"] if check["name"] == "accuracy"]
    assert not accuracy["passed"]
    assert "accuracy 0." in " ".join(faulty.ended.errors.split())


@pytest.mark.usefixtures("look", "faulty")
def test_after_rehearse_down_no_process_or_file_of_the_rehearsal_is_left(life: Life, project: Project) -> None:
    """The last test of this stack."""
    record = json.loads((project.folder / ".rehearsal" / STACK / "cluster.json").read_text())
    processes = [process for pid in members_of(record["namespaces"]) if (process := identity_of(pid))]
    down = project.command("rehearse", "down", "--stack", STACK)
    assert down.status == 0, down.errors
    assert not Path(f"/proc/{record['supervisor']['pid']}").exists()
    assert [process for process in processes if process.alive()] == []  # a namespace's number is given again
    assert _links() == life.links
    assert str(project.folder / ".rehearsal" / STACK) not in Path("/proc/self/mountinfo").read_text()


def _links() -> list[str]:
    output = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, timeout=10, check=True).stdout
    return sorted(line.split()[0] for line in output.splitlines())


@pytest.mark.nightly
def test_on_a_full_node_aggregated_servers_are_deleted_before_disaggregated_start(project: Project) -> None:
    """Aggregated servers on all GPUs of a node, half of them without a router, then others in their place."""
    plain = model(name="plain", topology="agg-tp1-4r", router={"mode": "none"})
    project.write(FULL, models=[model(topology="agg-tp1-4r"), plain])
    aggregated = project.rehearse(FULL)
    assert aggregated.status == 0, aggregated.errors
    assert [(smoke["passed"], smoke["remote_prefill"]) for smoke in aggregated.document["smoke"]] == [(True, None)] * 2
    project.write(FULL, models=[model(topology="4p-tp1-2d-tp2")])
    disaggregated = project.rehearse(FULL)
    assert disaggregated.status == 0, disaggregated.errors
    output = " ".join(disaggregated.errors.split())
    assert "gpt-oss-120b-aggregated, plain-aggregated must go before they come" in output
    (smoke,) = disaggregated.document["smoke"]
    assert smoke["passed"]
    assert project.command("rehearse", "down", "--stack", FULL).status == 0
