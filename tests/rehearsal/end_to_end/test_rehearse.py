"""The main job through the command line, with everything real that a rehearsal has."""

import json
import re
import subprocess
import sys
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from llmd_bench.report_format import BenchmarkReport
from llmd_oke.values import read_yaml
from llmd_rehearsal.cluster_plan import SIMULATED_PLUGIN
from llmd_rehearsal.namespaces import identity_of, members_of
from user_project import PLANTED, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

DISAGGREGATED = "disaggregated"
FULL = "full"


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
    """Operations of a disaggregated stack, in order: previewed and made as continuous integration does it, left
    alone, scaled by hand, changed; and the machine's network links before."""

    links: list[str]
    before: Ended
    made: Ended
    left_alone: Ended
    scaled: Ended
    changed: Ended


@pytest.fixture(scope="module")
def life(project: Project) -> Life:
    links = _links()
    project.write(DISAGGREGATED)
    own = ("--stack", DISAGGREGATED)
    rehearse = ("rehearse", *own, "--json")
    before = project.command("pipeline", "preview", *own, "--rehearse")
    created = project.command("pipeline", "deploy", *own, "--rehearse")
    left_alone = project.command(*rehearse)
    by_hand = project.command("rehearse", "run", "--stack", DISAGGREGATED, "--", sys.executable, "-c", SCALE_BY_HAND)
    assert by_hand.status == 0, by_hand.errors
    scaled = project.command(*rehearse, "--no-benchmark")
    project.write(
        DISAGGREGATED, models=[model(topology="1p-tp1-2d-tp2", engine={"env": {"VLLM_LOGGING_LEVEL": "DEBUG"}})]
    )
    return Life(links, before, created, left_alone, scaled, project.command(*rehearse))


def test_the_pipeline_commands_preview_and_deploy_a_stack_in_a_rehearsal(life: Life) -> None:
    assert [life.before.status, life.made.status] == [0, 0], life.made.errors
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
    (file,) = (project.folder / "reports" / DISAGGREGATED / "latest").glob("benchmark_report_v0.2*")
    report = BenchmarkReport.model_validate(read_yaml(file))
    assert report.version == "0.2"
    assert "vLLM" in " ".join(life.left_alone.document["simulated"])


def test_a_deployments_passport_json_has_remote_prefill_cold_start_and_images(life: Life, project: Project) -> None:
    first, *_ = sorted((project.folder / "reports" / DISAGGREGATED).glob("*/passport.json"))
    passport = json.loads(first.read_text())
    assert passport["remote_prefill"]["share"] == pytest.approx(1.0)
    assert passport["smoke_passed"]
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
    record = json.loads((project.folder / ".rehearsal" / DISAGGREGATED / "cluster.json").read_text())
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
    first, *_ = sorted((project.folder / "reports" / DISAGGREGATED).glob("*/summary.json"))
    (smoke,) = life.left_alone.document["smoke"]
    assert smoke["load"]["run"] == json.loads(first.read_text())["load"]["run"]


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
    words = ("status", "--stack", DISAGGREGATED, "--rehearse", "--every", "1")
    healthy, screen = project.command(*words, "--json"), project.command(*words)
    file = project.folder / "support.tar.gz"
    packed = project.command("support", "--stack", DISAGGREGATED, "--rehearse", "--output", str(file))
    assert packed.status == 0, packed.errors
    doctor = project.command("doctor", "--stack", DISAGGREGATED, "--rehearse", "--json")
    of_archive = project.command("doctor", "--from", str(file), "--json")
    by_hand = ("--", sys.executable, "-c", SCALE_BY_HAND.replace('"replicas": 3', '"replicas": 0'))
    project.command("rehearse", "run", "--stack", DISAGGREGATED, *by_hand)
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


@pytest.mark.usefixtures("look")
def test_after_rehearse_down_no_process_or_file_of_the_rehearsal_is_left(life: Life, project: Project) -> None:
    """The last test of this stack."""
    record = json.loads((project.folder / ".rehearsal" / DISAGGREGATED / "cluster.json").read_text())
    processes = [process for pid in members_of(record["namespaces"]) if (process := identity_of(pid))]
    down = project.command("rehearse", "down", "--stack", DISAGGREGATED)
    assert down.status == 0, down.errors
    assert not Path(f"/proc/{record['supervisor']['pid']}").exists()
    assert [process for process in processes if process.alive()] == []  # a namespace's number is given again
    assert _links() == life.links
    assert str(project.folder / ".rehearsal" / DISAGGREGATED) not in Path("/proc/self/mountinfo").read_text()


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
