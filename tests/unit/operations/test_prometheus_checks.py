import pytest
from llmd_oke.operations.cluster_checks import prometheus_findings
from llmd_oke.operations.findings import Verdict
from llmd_oke.operations.prometheus import PrometheusSeries
from llmd_oke.planning import plan_object
from stack_files import created_stack, plan

URL = "http://prometheus-operated.llm-d-monitoring.svc.cluster.local:9090"
ALIVE = [PrometheusSeries({}, ((0.0, 1.0),))]


def up(**values: float) -> list[PrometheusSeries]:
    return [PrometheusSeries({"pod": pod}, ((0.0, value),)) for pod, value in values.items()]


@pytest.mark.parametrize("monitoring", ["none", "install"])
def test_a_stack_without_an_existing_prometheus_has_no_check_of_prometheus(monitoring: str) -> None:
    assert prometheus_findings(plan(monitoring=monitoring), lambda _: pytest.fail("asked")) == []


@pytest.mark.parametrize(
    ("targets", "verdict", "told"),
    [
        (up(a=1, b=1), Verdict.FINE, "it scrapes 2 targets in llm-d"),
        (up(a=1, b=0), Verdict.PROBLEM, "1 of its targets in llm-d don't answer it: b"),
        ([], Verdict.UNKNOWN, "it scrapes nothing in the namespace llm-d"),
    ],
    ids=["all", "one of two", "nothing"],
)
def test_a_prometheus_is_judged_by_the_targets_of_the_stack_that_it_scrapes(
    targets: list[PrometheusSeries], verdict: Verdict, told: str
) -> None:
    answers = {"vector(1)": ALIVE, 'up{namespace="llm-d"}': targets}
    there, scraped = prometheus_findings(plan(monitoring="existing"), answers.__getitem__)
    assert (there.path, there.verdict, there.value) == ("monitoring", Verdict.FINE, f"{URL} answers")
    assert (scraped.path, scraped.verdict, scraped.value) == ("monitoring", verdict, told)


def test_a_prometheus_outside_of_the_cluster_that_does_not_answer_is_a_problem(port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    (finding,) = prometheus_findings(plan(monitoring="existing", prometheus={"url": url}))
    assert finding.verdict is Verdict.PROBLEM
    assert f"Prometheus at {url} can't be reached" in finding.value
    assert finding.remedy.startswith("Does it run, and does this address lead to it from here?")


def test_the_check_of_prometheus_is_unknown_for_a_cluster_yet_to_be_created() -> None:
    (finding,) = prometheus_findings(plan_object(created_stack(monitoring="existing")))
    assert finding.verdict is Verdict.UNKNOWN
