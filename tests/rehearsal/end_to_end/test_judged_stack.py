"""A stack that is judged: by its smoke benchmark as a part of the deployment, whose report fails an update, runs again
when it should, and asks whether answers are still right where an override may change them; then its nodes, sound ones
and one for each fault that nodes can have in a rehearsal, by the command that tests them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llmd_rehearsal.oci_plugin.faults import NODE, Fault, FaultRule, write_rules
from user_project import TIME_SCALE, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK, NODES = "judged", 11
POOLS = [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": NODES}]
OVERRIDE = {"quickReduce": "INT4"}
FAULTS = {"LLMD_OKE_REHEARSED_FAILED_PREFILL_PERCENT": "50", "LLMD_OKE_REHEARSED_CORRUPT_KV_PERCENT": "60"}
"""Half of all prefills fail, and of what prefill servers hand over most is corrupted."""


@dataclass(frozen=True)
class Life:
    """A threshold that nothing meets, then none."""

    missed: Ended
    met: Ended


@pytest.fixture(scope="module")
def life(project: Project) -> Life:
    thresholds = {"thresholds": {"maxTtftP95Ms": 0.001}}
    project.write(STACK, gpuPools=POOLS, override=OVERRIDE, smoke={"requests": 8, "concurrency": 2, **thresholds})
    missed = project.rehearse(STACK)
    project.write(STACK, gpuPools=POOLS, override=OVERRIDE)
    return Life(missed, project.rehearse(STACK))


def test_a_missed_limit_of_the_smoke_benchmark_fails_the_update_and_is_named(life: Life) -> None:
    assert life.missed.status == 1
    assert "failed its smoke benchmark: TTFT p95" in " ".join(life.missed.errors.split())
    assert '{"message"' not in life.missed.errors
    assert "Traceback" not in life.missed.errors


def test_a_failed_smoke_job_still_publishes_its_benchmark_tables_and_report(life: Life, project: Project) -> None:
    assert "FAIL │ TTFT p95" in life.missed.errors
    assert list((project.folder / "reports" / STACK).glob("*/summary.json"))


def test_after_a_failed_benchmark_models_stay_and_only_the_benchmark_is_rerun(life: Life) -> None:
    assert life.met.status == 0, life.met.errors
    (smoke,) = life.met.document["smoke"]
    assert smoke["passed"]
    changes = life.met.document["update"]["changes"]
    assert changes.get("create", 0) == 0
    assert changes["replace"] <= 3  # program, facts and Job


def test_the_smoke_jobs_report_says_what_was_simulated_and_which_versions_ran(life: Life) -> None:
    (smoke,) = life.met.document["smoke"]
    assert smoke["provenance"]["numbers"] == "calibrated"
    assert "vLLM" in smoke["provenance"]["simulated"]
    assert smoke["provenance"]["time_scale"] == float(TIME_SCALE)


def test_the_passed_accuracy_of_an_overridden_vllm_image_is_in_passport_json(life: Life, project: Project) -> None:
    (accuracy,) = [check for check in life.met.document["smoke"][0]["checks"] if check["name"] == "accuracy"]
    assert (accuracy["value"], accuracy["limit"], accuracy["passed"]) == (1.0, 0.95, True)
    passports = map(Path.read_text, (project.folder / "reports" / STACK).glob("*/passport.json"))
    accuracies = [json.loads(passport)["accuracy"] for passport in passports]
    assert (1.0, 80) in [(accuracy["score"], accuracy["questions"]) for accuracy in accuracies]


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
    asked = project.command("rehearse", "run", "--stack", STACK, "--", "python", "-c", code)
    assert asked.status == 0, asked.errors
    return json.loads(asked.output.splitlines()[-1])


def tainted(project: Project) -> set[str]:
    """The nodes with the taint of acceptance."""
    has_taint = "any(t.key == 'llmd-oke/acceptance' for t in n.spec.taints or [])"
    return set(ask(project, f"[n.metadata.name for n in nodes if {has_taint}]"))


def serving(project: Project) -> list[str]:
    """The nodes of the model's servers."""
    has_gpu = "'amd.com/gpu' in (p.spec.containers[0].resources.limits or {})"
    return ask(project, f"[p.spec.nodeName for p in pods if {has_gpu}]")


@pytest.fixture(scope="module")
def runs(project: Project, life: Life) -> Acceptances:
    assert life.met.status == 0, life.met.errors
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
    project.write(STACK, gpuPools=POOLS, override=OVERRIDE, models=[model(engine={"env": FAULTS})], smoke=smoke)
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
