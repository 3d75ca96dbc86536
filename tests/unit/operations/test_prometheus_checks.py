import socket

import pytest
from llmd_base.errors import KitError
from llmd_oke.operations.cluster_checks import prometheus_findings
from llmd_oke.operations.findings import Verdict
from llmd_oke.operations.prometheus import PrometheusSeries
from llmd_oke.planning import plan_object
from stack_files import created_stack, plan

URL = "http://prometheus-operated.llm-d-monitoring.svc.cluster.local:9090"
ALIVE = [PrometheusSeries({}, ((0.0, 1.0),))]


def up(**values: float) -> list[PrometheusSeries]:
    return [PrometheusSeries({"pod": pod}, ((0.0, value),)) for pod, value in values.items()]


def verdicts(targets: list[PrometheusSeries]) -> list[tuple[Verdict, str]]:
    answers = {"vector(1)": ALIVE, 'up{namespace="llm-d"}': targets}
    findings = prometheus_findings(plan(monitoring="existing"), answers.__getitem__)
    assert {finding.path for finding in findings} == {"monitoring"}
    return [(finding.verdict, finding.value) for finding in findings]


@pytest.mark.parametrize("monitoring", ["none", "install"])
def test_a_stack_without_an_existing_prometheus_has_no_check_of_prometheus(monitoring: str) -> None:
    assert prometheus_findings(plan(monitoring=monitoring), lambda _: pytest.fail("asked")) == []


def test_a_prometheus_that_scrapes_the_stack_passes() -> None:
    expected = [(Verdict.FINE, f"{URL} answers"), (Verdict.FINE, "it scrapes 2 targets in llm-d")]
    assert verdicts(up(a=1, b=1)) == expected


def test_targets_that_prometheus_cannot_scrape_are_a_problem() -> None:
    assert verdicts(up(a=1, b=0))[1] == (Verdict.PROBLEM, "1 of its targets in llm-d don't answer it: b")


def test_a_prometheus_that_scrapes_nothing_of_the_stack_is_a_problem() -> None:
    assert verdicts([])[1] == (Verdict.UNKNOWN, "it scrapes nothing in the namespace llm-d")


def test_a_prometheus_that_does_not_answer_is_a_problem_with_the_reason() -> None:
    def refuse(_: str) -> list[PrometheusSeries]:
        raise KitError("it can't be reached", "Does it run?")

    (finding,) = prometheus_findings(plan(monitoring="existing"), refuse)
    assert (finding.verdict, finding.value, finding.remedy) == (Verdict.PROBLEM, "it can't be reached", "Does it run?")


def test_a_prometheus_outside_of_the_cluster_is_queried_at_its_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        (finding,) = prometheus_findings(plan(monitoring="existing", prometheus={"url": url}))
    assert finding.verdict is Verdict.PROBLEM
    assert f"Prometheus at {url} can't be reached" in finding.value


def test_the_check_of_prometheus_is_unknown_for_a_cluster_yet_to_be_created() -> None:
    (finding,) = prometheus_findings(plan_object(created_stack(monitoring="existing")))
    assert finding.verdict is Verdict.UNKNOWN
