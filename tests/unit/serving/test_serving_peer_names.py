"""Wait for the names of a unit's pods: known for good, each to one address, the pod among them."""

from collections.abc import Callable

from llmd_pods.peer_names import PAUSE_S, STEADY_S, wait

NAMES = ("prefill-0", "decode-0")
KNOWN = {"prefill-0": {"10.0.0.1"}, "decode-0": {"10.0.0.2"}}


def waited(answers: Callable[[float], dict[str, set[str]]], own: str = "10.0.0.2") -> tuple[str, float]:
    """The problem at the end, and the seconds that it took on a clock of its own."""
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    problem = wait(NAMES, own, 300.0, lambda name: answers(now[0]).get(name, set()), lambda: now[0], pause)
    return problem, now[0]


def test_peer_names_must_resolve_longer_than_negative_dns_answers_are_cached():
    assert waited(lambda _now: KNOWN) == ("", STEADY_S)


def test_a_peer_name_that_stops_resolving_restarts_the_wait_for_peer_names():
    problem, took_s = waited(lambda now: {} if 20 <= now < 30 else KNOWN)
    assert problem == ""
    assert 30 + STEADY_S <= took_s <= 30 + STEADY_S + PAUSE_S


def test_the_wait_for_peer_names_goes_on_while_one_has_several_addresses():
    problem, took_s = waited(lambda _now: {**KNOWN, "prefill-0": {"10.0.0.1", "10.0.0.9"}})
    assert problem == "after 300 s without one steady address: prefill-0"
    assert took_s == 300


def test_the_wait_for_peer_names_reports_that_none_has_the_pods_own_address():
    problem, _ = waited(lambda _now: KNOWN, own="10.0.0.7")
    assert "10.0.0.7, the pod's own address, is none of" in problem
