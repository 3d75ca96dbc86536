"""`llmd-oke init`: answers become a stack file that planning accepts, or nothing is written."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from llmd_base.errors import InvalidStack, KitError
from llmd_base.row import Basis
from llmd_oke import planning
from llmd_oke.cli import init as command
from llmd_oke.cli import token
from llmd_oke.cli.first_answers import SHAPE
from llmd_oke.cli.main import app
from llmd_oke.cli.questions import Answers, Question
from llmd_oke.cli.topology_search import FoundTopologies, FoundTopology, ServingNeeds
from llmd_oke.operations.tenancy_offers import Offer
from oci_for_tests import FakeOci, Sequence
from typer.testing import CliRunner

COMPARTMENT = "ocid1.compartment.oc1..mine"
ON_OCI = ("--region", "us-ashburn-1", "--compartment", COMPARTMENT)
SIZED = ("--topology", "8p-tp1-4d-tp2")


@pytest.fixture(autouse=True)
def no_oci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCI_CLI_CONFIG_FILE", str(tmp_path / "no-such-file"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "Pulumi.yaml").write_text("name: mine\n")
    return tmp_path


def init(project: Path, *arguments: str, stack: str = "first") -> Result:
    return CliRunner().invoke(app, ["init", "--stack", stack, "--project", str(project), *arguments])


def text_of(project: Path, stack: str = "first") -> str:
    return (project / "stacks" / f"Pulumi.{stack}.yaml").read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        (*ON_OCI, *SIZED),
        (*ON_OCI, *SIZED, "--copies", "9"),
        ("--cluster-id", "ocid1.cluster.oc1.iad.mine", *SIZED),
        ("--target", "rehearsal", *SIZED),
        ("--target", "rehearsal", "--topology", "agg-tp8-1r", "--model", "qwen3-32b"),
    ],
)
def test_the_stack_file_that_init_writes_can_be_deployed(project: Path, arguments: tuple[str, ...]):
    assert init(project, *arguments).exit_code == 0
    assert planning.plan_stack_file(project, "first").models


def test_init_writes_options_with_comments_into_the_stack_file(project: Path):
    init(project, *ON_OCI, *SIZED, "--client-cidr", "192.0.2.0/24", "--itl", "25")
    text = text_of(project)
    for words in (f"compartmentId: {COMPARTMENT}", "clientCidrs: [192.0.2.0/24]", "slo: {itlMs: 25}"):
        assert words in text
    assert "# network, rights, cluster and pools are this stack's" in text


def test_init_reports_unanswered_questions_as_assumptions(project: Path):
    told = json.loads(init(project, *ON_OCI, *SIZED, "--json").stdout)
    assert "--workload 4096/256: the lengths of the published scale-out run" in told["assumed"]
    assert all(f"# Assumed: {text}" in text_of(project) for text in told["assumed"])
    assert (told["ok"], told["gpus"]) == (True, 16)


@pytest.mark.parametrize(("given", "wrong"), [(("--target", "oci"), ""), (("--image", "x"), "--image")])
def test_without_a_terminal_init_names_missing_and_wrong_options(project: Path, given: tuple[str, str], wrong: str):
    result = init(project, *given)
    assert result.exit_code == 1
    assert isinstance(result.exception, KitError)
    assert "--region, --compartment, --load or --gpus" in str(result.exception)
    assert wrong in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ((*ON_OCI[:2], "--compartment", "mine", *SIZED), "--compartment"),
        ((*ON_OCI, *SIZED, "--model", "gpt-17"), "--model"),
        ((*ON_OCI, *SIZED, "--workload", "many"), "--workload"),
        ((*ON_OCI, "--topology", "8 servers"), "models[0].topology"),
        ((*ON_OCI, "--topology", "1p-tp16-1d-tp16"), "models[0].topology"),
        ((*ON_OCI, *SIZED, "--gpus", "8"), "--gpus"),
        ((*ON_OCI, "--load", "5", "--gpus", "8"), "--gpus"),
        ((*ON_OCI, "--gpus", "8", "--copies", "2"), "--copies"),
        ((*ON_OCI, *SIZED, "--cluster", "new", "--cluster-id", "ocid1.cluster.oc1.iad.mine"), "--cluster-id"),
        (("--cluster-id", "mine", *SIZED), "--cluster-id"),
        (("--cluster-id", "ocid1.cluster.oc1.iad.mine", "--image", "ocid1.image.oc1.iad.mine", *SIZED), "--image"),
        (("--cluster-id", "ocid1.cluster.oc1.iad.mine", "--region", "us-phoenix-1", *SIZED), "--region"),
        (("--target", "rehearsal", "--cluster-id", "ocid1.cluster.oc1.iad.mine", *SIZED), "--cluster-id"),
        (("--target", "rehearsal", "--cluster", "new", "--client-cidr", "192.0.2.0/24", *SIZED), "--client-cidr"),
        (("--target", "rehearsal", "--region", "us-nowhere-1", *SIZED), "--region"),
    ],
)
def test_init_refuses_impossible_answers_and_writes_no_file(project: Path, arguments: tuple[str, ...], place: str):
    result = init(project, *arguments)
    assert result.exit_code == 1
    assert place in str(result.exception)
    assert not list(project.rglob("Pulumi.*.yaml"))


@pytest.mark.parametrize("size", [SIZED, ("--load", "5")])
def test_init_names_all_wrong_answers_at_once_whatever_finds_them(project: Path, size: tuple[str, ...]):
    wrong = ("--image", "x", "--kubernetes-version", "v1.20.0", "--client-cidr", "10.0.0.1/8", "--model", "gpt-17")
    result = init(project, *ON_OCI, *size, *wrong)
    assert isinstance(result.exception, InvalidStack)
    paths = [problem.path for problem in result.exception.problems]
    assert paths[:2] == ["--image", "--model"]
    assert {"cluster.kubernetesVersion", "cluster.network.bastionService.clientCidrs[0]"} <= set(paths[2:])
    assert result.exception.verdict == "no stack file is written"


@pytest.mark.parametrize(
    "size", [("--load", "inf"), ("--load", "nan"), ("--gpus", "100000"), ("--gpus", "8", "--ttft", "nan")]
)
def test_init_refuses_sizes_that_no_search_ends_with(project: Path, size: tuple[str, ...]):
    result = init(project, *ON_OCI, *size)
    assert (result.exit_code, list(project.rglob("Pulumi.*.yaml"))) == (2, [])


def test_init_keeps_an_existing_stack_file_without_force(project: Path):
    init(project, *ON_OCI, *SIZED)
    before = text_of(project)
    assert init(project, "--target", "rehearsal", *SIZED).exit_code == 1
    assert text_of(project) == before
    assert init(project, "--target", "rehearsal", *SIZED, "--force").exit_code == 0
    assert text_of(project) != before


def test_init_plans_more_system_nodes_for_more_routers(project: Path):
    init(project, *ON_OCI, "--topology", "3p-tp1-1d-tp1", "--copies", "9")
    (pool,) = [line for line in text_of(project).splitlines() if "systemPool:" in line]
    assert int(pool.rpartition("size: ")[2].rstrip("}")) > 3


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[ServingNeeds]:
    """All that is searched for; limits of latencies are met by nothing."""
    asked: list[ServingNeeds] = []

    def search(needs: ServingNeeds) -> FoundTopologies:
        asked.append(needs)
        if needs.ttft_ms:
            raise KitError("Nothing meets them.")
        impossible = FoundTopology("3p-tp3-1d-tp1", 1, 16, 50.0)
        return FoundTopologies([impossible, FoundTopology("11p-tp1-5d-tp1", 1, 16, 40.0)], Basis.BOUND, "bound; more")

    monkeypatch.setattr(command, "topology_search", lambda: search)
    return asked


def test_init_writes_a_topology_that_carries_the_given_load(project: Path, searched: list[ServingNeeds]):
    assert init(project, *ON_OCI, "--load", "30").exit_code == 0
    text = text_of(project)
    assert searched[-1].requests_per_s == 30
    assert "topology: 11p-tp1-5d-tp1" in text
    assert "# carries at most 40 requests/s (bound)" in text


def test_init_refuses_unmet_latency_targets_and_omits_unmet_assumed_ones(project: Path, searched: list[ServingNeeds]):
    refused = init(project, *ON_OCI, "--gpus", "16", "--ttft", "100")
    assert (refused.exit_code, str(refused.exception)) == (1, "Nothing meets them. Nothing is written.")
    assert init(project, *ON_OCI, "--gpus", "16").exit_code == 0
    assert "slo:" not in text_of(project)
    assert "# Assumed: no limits of latency" in text_of(project)


def test_init_fills_in_resources_of_the_tenancy_instead_of_placeholders(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "oci-config"
    file.write_text("[DEFAULT]\ntenancy=ocid1.tenancy.oc1..mine\nregion=us-ashburn-1\n")
    monkeypatch.setenv("OCI_CLI_CONFIG_FILE", str(file))
    image = {"id": "ocid1.image.oc1.iad.own", "displayName": "gpu", "lifecycleState": "AVAILABLE"}
    report = {"shapeAvailabilities": [{"availabilityStatus": "AVAILABLE", "availableCount": 3}]}
    answers = {
        "identity /availabilityDomains": Sequence([[{"name": "Mine:US-ASHBURN-AD-2"}]]),
        "POST compute /computeCapacityReports": report,
        "compute /images": Sequence([[{**image, "compartmentId": COMPARTMENT}]]),
        "containerengine /clusterOptions/all": {"kubernetesVersions": ["v1.35.0", "v1.34.2"]},
    }
    monkeypatch.setattr(token, "client_of", lambda *_: FakeOci(answers))
    assert init(project, "--compartment", COMPARTMENT, *SIZED).exit_code == 0
    text = text_of(project)
    assert "example" not in text.replace("203.0.113.0/24", "")
    for words in ("tenancyId: ocid1.tenancy.oc1..mine", "Mine:US-ASHBURN-AD-2", image["id"], f"3 x {SHAPE} free"):
        assert words in text


def typed(monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
    lines = iter(texts)

    def prompt(_text: str, default: str | None, **_: Any) -> str:
        return next(lines) or default or ""

    monkeypatch.setattr(typer, "prompt", prompt)


DIGIT = Question("--digit", "A digit", lambda text: None if text in {"7", "8"} else "seven or eight")


def test_init_asks_again_after_an_invalid_answer_and_offers_choices_by_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    typed(monkeypatch, "nine", "7", "2", "")
    assert Answers(asks=True).answer(DIGIT, None) == "7"
    assert "accepted: seven or eight" in capsys.readouterr().err
    offers = [Offer("8", "eight"), Offer("7", "seven")]
    answers = [Answers(asks=True).answer(DIGIT, None, offers=lambda: offers) for _ in range(2)]
    assert answers == ["7", "8"]
