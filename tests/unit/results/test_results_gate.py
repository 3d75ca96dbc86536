import pytest
from llmd_oke.errors import KitError
from llmd_oke.results.comparison import Side, compare
from llmd_oke.results.gate import breaches, parse_gates
from results_rows import row


def judged(gate, a, b):
    return breaches(parse_gates([gate]), compare(Side("a", (a,)), Side("b", (b,))))


@pytest.mark.parametrize(
    ("gate", "fails"),
    [
        ("ttft_ms.p95>+10%", True),
        ("ttft_ms.p95>+20%", False),
        ("ttft_ms.p95 > +50", True),
        ("ttft_ms.p95>+80", False),
        ("ttft_ms.p95>570", True),
        ("ttft_ms.p95>600", False),
        ("output_tokens_per_s<-5%", True),
        ("output_tokens_per_s<-15%", False),
        ("output_tokens_per_s<500", False),
        ("tpsg<-5%", True),
    ],
)
def test_a_gate_fails_on_the_wrong_side_of_its_limit(gate, fails):
    b = row(ttft=575.0, output_tokens_per_s=720.0)
    assert bool(judged(gate, row(), b)) is fails


def test_a_breach_says_by_how_much_and_under_which_load():
    (breach,) = judged("ttft_ms.p95>+10%", row(), row(ttft=575.0))
    assert "+15.0%, from 500 to 575 ms" in str(breach)
    assert "8 users" in str(breach)


def test_what_can_not_be_judged_fails():
    assert judged("goodput_share<0.9", row(), row())
    assert judged("itl_ms.p95>+10%", row(), row())


def test_an_unchanged_zero_is_no_change():
    assert not judged("failures_share>+10%", row(), row())


def test_all_wrong_gates_are_named_at_once():
    with pytest.raises(KitError) as caught:
        parse_gates(["ttft.p95>+10%", "ttft_ms.p95=3", "ttft_ms.p95>+10%"])
    assert "ttft_ms.p95" in caught.value.message.splitlines()[0]
    assert len(caught.value.message.splitlines()) == 2


def test_a_load_that_only_a_has_fails_every_gate():
    compared = compare(Side("a", (row(), row(concurrency=64))), Side("b", (row(),)))
    (breach,) = breaches(parse_gates(["ttft_ms.p95>+10%"]), compared)
    assert "B has no result under it" in str(breach)
    assert "64 users" in str(breach)
