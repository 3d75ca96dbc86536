"""Three models on one set of nodes: prefill and decode of different sizes, and aggregated servers without a router."""

from typing import Any

import pytest
from user_project import Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK = "several"
LLAMA = "llama-3.3-70b-instruct-fp8-dynamic"
REPOSITORY = "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"


@pytest.fixture(scope="module")
def rehearsed(project: Project) -> Ended:
    project.write(
        STACK,
        gpuPools=[{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 2}],
        models=[
            model(),
            model(model=LLAMA, topology="1p-tp2-1d-tp4"),
            model(name="plain", topology="agg-tp1-2r", router={"mode": "none"}),
        ],
    )
    return project.rehearse(STACK)


@pytest.fixture(scope="module")
def smoke(rehearsed: Ended) -> dict[str, dict[str, Any]]:
    """The summary of each model's benchmark, by its topology."""
    assert rehearsed.status == 0, rehearsed.errors
    return {summary["topology"]: summary for summary in rehearsed.document["smoke"]}


def test_every_model_is_served_and_passes_its_benchmark(smoke: dict[str, dict[str, Any]]) -> None:
    assert {name: summary["passed"] for name, summary in smoke.items()} == {
        "2p-tp1-1d-tp2": True,
        "1p-tp2-1d-tp4": True,
        "agg-tp1-2r": True,
    }


def test_models_with_prefill_servers_have_all_prompts_prefilled_by_their_own(smoke: dict[str, dict[str, Any]]) -> None:
    shares = [smoke[name]["remote_prefill"]["share"] for name in ("2p-tp1-1d-tp2", "1p-tp2-1d-tp4")]
    assert shares == pytest.approx([1.0, 1.0])


def test_each_model_says_whether_its_latencies_are_calibrated_or_bounds(
    rehearsed: Ended, smoke: dict[str, dict[str, Any]]
) -> None:
    assert {name: summary["provenance"]["numbers"] for name, summary in smoke.items()} == {
        "2p-tp1-1d-tp2": "calibrated",
        "1p-tp2-1d-tp4": "bound",
        "agg-tp1-2r": "calibrated",
    }
    words = [text for text in rehearsed.document["simulated"] if "bounds" in text]
    assert words == [f"times of {REPOSITORY} (bounds: a role of it has no figures for this GPU)"]
    assert all(set(words) <= set(summary["provenance"]["simulated"]) for summary in smoke.values())
