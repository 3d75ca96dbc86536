"""Promotion of a commit to a stack: what is deployed again when, what the gates compare, and what is said of it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_bench.comparison import parse_gates
from llmd_bench.stores import FolderStore
from llmd_oke.pipelines.promotion import (
    NOT_BACK,
    DeployAttempt,
    GoodDeployment,
    Judgement,
    Promotion,
    judge,
    last_good,
    promote,
    promotion_markdown,
    remember_good,
)
from rows_for_tests import known_row

OLD, NEW = "a" * 40, "b" * 40
GOOD = GoodDeployment(commit=OLD, run="20260101T000000Z", deployed="2026-01-01T00:00:00+00:00")
BREACHES = ("ttft_ms.p95>+10%: it changed by +30%",)


def promoted(
    *outcomes: tuple[bool, bool], good: GoodDeployment | None = GOOD, breaches: Sequence[str] = ()
) -> tuple[Promotion, list[str]]:
    """Promote NEW where each update passes or not, and has begun or not; return the result and the updates' commits."""
    asked: list[str] = []

    def deploy(commit: str) -> DeployAttempt:
        passed, begun = outcomes[len(asked)]
        asked.append(commit)
        error = "" if passed else "out of capacity"
        return DeployAttempt(commit=commit, passed=passed, begun=begun, error=error, changes={"create": 2, "same": 3})

    return promote("prod", NEW, good, deploy, lambda _: Judgement(breaches=tuple(breaches))), asked


@pytest.mark.parametrize(
    ("outcomes", "breaches", "verdict", "asked"),
    [
        ([(True, True)], [], "deployed", [NEW]),
        ([(False, True), (True, True)], [], "rolled back", [NEW, OLD]),
        ([(True, True), (True, True)], BREACHES, "rolled back", [NEW, OLD]),
        ([(True, False), (True, True)], BREACHES, "rolled back", [NEW, OLD]),
    ],
    ids=["deployed", "failed update", "breached limit", "breached limit without an update"],
)
def test_after_a_failed_update_or_a_breached_limit_the_last_good_commit_comes_back(
    outcomes: list[tuple[bool, bool]], breaches: Sequence[str], verdict: str, asked: list[str]
):
    done, commits = promoted(*outcomes, breaches=breaches)
    assert (done.verdict, done.exit_code, commits) == (verdict, len(asked) - 1, asked)


def test_an_update_that_is_refused_before_it_begins_is_not_rolled_back():
    done, asked = promoted((False, False))
    assert (done.verdict, done.exit_code, asked) == ("refused", 1, [NEW])
    assert "Nothing was changed" in promotion_markdown(done)


@pytest.mark.parametrize("good", [None, GOOD.model_copy(update={"commit": NEW})])
def test_without_an_earlier_good_commit_a_failed_update_is_not_rolled_back(good: GoodDeployment | None):
    done, asked = promoted((False, True), good=good)
    assert (done.verdict, done.exit_code, asked) == ("nothing to go back to", NOT_BACK, [NEW])
    assert "as the failed update left it" in promotion_markdown(done)


def test_a_failed_rollback_is_reported_with_the_causes_of_both_failures():
    done, _ = promoted((False, True), (False, True))
    assert (done.verdict, done.exit_code) == ("not rolled back", NOT_BACK)
    said = promotion_markdown(done)
    assert said.count("out of capacity") == 2
    assert "neither at this commit nor at `aaaaaaaaaaaa`" in said
    assert "an upgrade of Kubernetes" in said


def test_a_rehearsed_promotion_in_a_new_local_cluster_says_that_it_was_no_update():
    done, _ = promoted((True, True))
    attempt = done.attempt.model_copy(update={"new_cluster": "nodes 2 becomes 3"})
    said = promotion_markdown(done.model_copy(update={"attempt": attempt}))
    assert "`bbbbbbbbbbbb` was no update, as the rehearsal's local cluster began for it: nodes 2 becomes 3." in said


def test_the_last_good_commit_is_stored_with_its_run_and_apart_from_rehearsed_ones(tmp_path: Path):
    store = FolderStore(tmp_path)
    done, _ = promoted((True, True))
    remember_good(store, done, rehearsed=True)
    assert last_good(store, "prod") is None
    _write(store, "20260102T000000Z", 100)
    remember_good(store, done)
    good, rehearsed = last_good(store, "prod"), last_good(store, "prod", rehearsed=True)
    assert good
    assert rehearsed
    assert (good.commit, good.run, rehearsed.commit) == (NEW, "20260102T000000Z", NEW)


def test_an_invalid_stored_last_good_commit_is_an_error(tmp_path: Path):
    FolderStore(tmp_path).write("prod/good.json", b'{"commit": "main; rm -rf /"}')
    with pytest.raises(KitError, match="names no commit"):
        last_good(FolderStore(tmp_path), "prod")


def _write(store: FolderStore, run: str, ttft_ms: float) -> None:
    row = known_row(basis="measured", concurrency=4, requests=8, ttft_ms={"p95": ttft_ms})
    store.write(f"prod/{run}/rows.jsonl", row.model_dump_json().encode())


@pytest.mark.parametrize(("ttft_ms", "breached"), [(105, 0), (150, 1)])
def test_a_new_benchmark_is_compared_with_that_of_the_last_good_commit(tmp_path: Path, ttft_ms: float, breached: int):
    store = FolderStore(tmp_path)
    _write(store, "20260101T000000Z", 100)
    _write(store, "20260101T120000Z", 1)  # of a commit that failed, which nothing is held against
    _write(store, "20260102T000000Z", ttft_ms)
    assert len(judge(store, "prod", parse_gates(["ttft_ms.p95>+10%"]), GOOD).breaches) == breached


def test_a_benchmark_comparison_that_is_impossible_is_noted_with_its_reason(tmp_path: Path):
    store, gates = FolderStore(tmp_path), parse_gates(["ttft_ms.p95>+10%"])
    _write(store, "20260101T000000Z", 100)
    assert "no new benchmark" in str(judge(store, "prod", gates, GOOD).notes)
    assert "no earlier benchmark" in str(judge(store, "prod", gates, None).notes)
    assert "no regression gates" in str(judge(store, "prod", (), GOOD).notes)
    _write(store, "20260102T000000Z", 100)
    gone = GOOD.model_copy(update={"run": "20250101T000000Z"})
    assert "can't be compared" in str(judge(store, "prod", gates, gone).notes)
