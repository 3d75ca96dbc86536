"""The event simulation against published claims: what holds must go on to hold, what doesn't must be listed.

The table is `values/tuning/published-claims.yaml`. Where a better model turns a known miss into a hit, take it off
the list there; where a change makes a hit a miss, the change is what to look at.
"""

from dataclasses import replace

import pytest
from llmd_base.row import Basis
from llmd_tuner.published_claims import ClaimOutcome, PublishedClaim, check_claims, published_claims


@pytest.fixture(name="outcomes", scope="module")
def outcomes_fixture():
    return check_claims(published_claims().claims)


def told(outcomes, verdict):
    return [
        f"{outcome.claim.name} at {outcome.at:g} {outcome.unit}: {outcome.predicted} ({outcome.accepted})"
        for outcome in outcomes
        if outcome.verdict == verdict
    ]


def test_the_simulation_reproduces_most_published_figures_and_all_but_known_misses(outcomes):
    assert told(outcomes, "miss") == []
    assert told(outcomes, "unexpected hit") == []
    # Two of three, so that the list of known misses can't quietly grow into the rule.
    assert len(told(outcomes, "hit")) > 2 / 3 * len(outcomes)


def test_faster_decoding_for_each_user_is_best_served_by_fewer_prefill_servers(outcomes):
    """3p, then 2p, then 1p with rising speed for each user, wherever they cross."""
    groups = {
        outcome.at: outcome.predicted.split()[0]
        for outcome in outcomes
        if "prefill-server" in outcome.claim.name and outcome.claim.evaluate.kind == "winner"
    }
    winners = [groups[tpsu] for tpsu in sorted(groups)]
    assert winners == sorted(winners, reverse=True)
    assert set(winners) == {"1p", "2p", "3p"}


def test_published_figures_predicted_from_assumptions_are_bounds_and_not_calibrated(outcomes):
    """Llama's prefill is an assumption."""
    bases = {(outcome.basis, "llama" in outcome.claim.name) for outcome in outcomes}
    assert bases == {(Basis.CALIBRATED, False), (Basis.BOUND, True)}


def test_published_figures_have_unique_names_and_known_misses_at_simulated_points(outcomes):
    points = {(outcome.claim.name, outcome.at) for outcome in outcomes}
    listed = {(claim.name, at) for claim in published_claims().claims for at in claim.known_misses}
    assert listed <= points
    names = [claim.name for claim in published_claims().claims]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("holds", "known", "verdict"),
    [(True, False, "hit"), (False, False, "miss"), (False, True, "known miss"), (True, True, "unexpected hit")],
)
def test_a_published_figures_verdict_is_hit_miss_known_miss_or_unexpected_hit(holds, known, verdict):
    claim = published_claims().claims[0]
    bare = PublishedClaim.model_validate({**claim.model_dump(), "known_misses": {20.0: "why"} if known else {}})
    outcome = ClaimOutcome(bare, 20.0, "TPSU", Basis.CALIBRATED, "1", "2", holds=False)
    assert replace(outcome, holds=holds).verdict == verdict
