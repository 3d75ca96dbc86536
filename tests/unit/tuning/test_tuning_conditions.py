import itertools

import pytest
from llmd_base.row import Basis
from llmd_bench.deployment import Parallelism
from llmd_oke import config
from llmd_oke.catalogue.conditions import Conditions, differences
from llmd_oke.catalogue.latency_figures import known_figures
from llmd_oke.catalogue.models import PassedEvaluation, QuickReduce
from llmd_oke.catalogue.releases import default_release, release
from llmd_oke.config.engine import Speculation
from llmd_oke.planning.conditions import VLLM_DEFAULTS, DeployedConditions, deployed_conditions
from llmd_oke.serving import vllm
from llmd_oke.serving.vllm import ServerSpec
from llmd_tuner import search_inputs
from llmd_tuner.confidence import condition_differences, confine
from tuning_for_tests import FIGURES, MODEL, SHAPE, question

PASSED = PassedEvaluation(name="gpqa", release="llm-d-0.9.0", score=0.7)
QUICK = MODEL.model_copy(update={"quick_reduce": QuickReduce(quantization="INT6", evaluation=PASSED)})
NEW = default_release()
OVERRIDDEN = NEW.model_copy(update={"vllm": NEW.vllm.model_copy(update={"quick_reduce": "INT4"})})
ENGINES = (
    config.Engine(),
    config.Engine(block_size=64),
    config.Engine(extra_args=("--attention-backend=ROCM_AITER_FA",)),
    config.Engine(env={"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "INT8"}),
)


def rendered(release_, model, engine, role):
    """The same, read from the arguments and variables of a pod."""
    arguments = {"extra_args": list(engine.extra_args), "env": dict(engine.env)}
    if engine.block_size:
        arguments["block_size"] = engine.block_size
    spec = ServerSpec(release_, model, SHAPE, role, Parallelism(2), False, arguments)
    result = dict(item.split("=", 1) for item in vllm.arguments(spec) if item.startswith(("--attention", "--block")))
    variables = {item["name"]: item.get("value") for item in vllm.environment(spec)}
    quick_reduce = variables.get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "NONE")
    return result["--attention-backend"], int(result["--block-size"]), quick_reduce


@pytest.mark.parametrize(
    ("release_", "model", "engine"),
    list(itertools.product((NEW, OVERRIDDEN, release("llm-d-0.6.0")), (MODEL, QUICK), ENGINES)),
)
def test_server_settings_assumed_by_the_tuner_equal_those_of_rendered_pods(release_, model, engine):
    started = deployed_conditions(release_, model, engine)
    for role, own in (("decode", started.handing_over), ("aggregated", started.aggregated)):
        assert (own.attention_backend, own.block_size, own.quick_reduce) == rendered(release_, model, engine, role)
        assert own.image == release_.vllm.image.reference


@pytest.mark.parametrize(
    ("topology", "quick_reduce", "block_size"),
    [
        (None, "INT4", 128),
        ("1p-tp1-1d-tp2", "INT4", 128),
        ("1p-tp1-1d-tp1", "NONE", 128),
        ("agg-tp2-1r", "INT6", 16),
        ("agg-tp1-2r", "NONE", 16),
    ],
)
def test_the_conditions_of_servers_follow_from_their_topology(topology: str | None, quick_reduce: str, block_size: int):
    started = DeployedConditions(
        handing_over=Conditions(quick_reduce="INT4", block_size=128),
        aggregated=Conditions(quick_reduce="INT6", block_size=16),
    )
    own = started.of(topology)
    assert (own.quick_reduce, own.block_size) == (quick_reduce, block_size)


def test_an_unknown_all_reduce_stays_unknown_for_every_topology():
    assert VLLM_DEFAULTS.of("agg-tp2-1r").quick_reduce is None


def test_each_difference_between_measured_and_planned_server_settings_is_reported():
    measured = Conditions(image="one", attention_backend="A", quick_reduce="NONE", block_size=16)
    deployed = Conditions(image="two", attention_backend="B", quick_reduce="INT4", block_size=128)
    image, backend, quick_reduce, block_size = differences(measured, deployed)
    assert "effect unknown" in image
    assert "no source compares them" in backend
    assert "0.35 (TP2), 0.54 (TP4) of their time" in quick_reduce
    assert "bound" in block_size
    assert list(differences(measured, measured)) == []


def test_latency_figures_without_settings_or_with_an_image_alone_are_reported():
    (told,) = differences(None, Conditions(image="two"))
    assert "is not told" in told
    told = list(differences(Conditions(image="one"), Conditions(image="two", block_size=128)))
    assert told[0] == "image two, measured one: effect unknown"
    assert told[1:] == [
        "conditions unknown: what the measured servers were started with beside their image is not told"
    ]


def test_an_attention_backend_is_recognized_in_each_notation_of_vllm_arguments():
    for words in (["--attention-backend", "ROCM_ATTN"], ["--attention_backend=A", "--attention-backend=ROCM_ATTN"]):
        started = deployed_conditions(NEW, MODEL, config.Engine(extra_args=tuple(words)))
        assert (started.handing_over.attention_backend, started.aggregated.attention_backend) == ("ROCM_ATTN",) * 2


def test_latency_figures_measured_with_quick_reduce_are_optimistic_without_it():
    (told,) = differences(Conditions(quick_reduce="INT4"), Conditions(quick_reduce="NONE"))
    assert "take longer than measured: not counted" in told


def test_mi300x_forecasts_name_planned_settings_that_differ_from_the_measured_ones():
    """The published points were measured without quick-reduce, with blocks of 16, by an image of February 2026."""
    _, trust = confine(
        question(), FIGURES, allow_extrapolation=True, started=deployed_conditions(NEW, MODEL, config.Engine())
    )
    assert any(item.startswith("prefill/decode: attention backend TRITON_ATTN") for item in trust.conditions)
    assert any(item.startswith("prefill/decode: block size 128, measured 16") for item in trust.conditions)
    assert not any("quick-reduce" in item for item in trust.conditions)


def test_hardware_bounds_have_no_reported_difference_to_measured_server_settings():
    bounds = known_figures(MODEL, search_inputs.known_gpu("MI325X").gpu)
    assert list(condition_differences(bounds, deployed_conditions(NEW, MODEL, config.Engine()))) == []


def test_forecasts_count_draft_tokens_only_if_their_accepted_share_is_given():
    (uncounted,) = differences(Conditions(block_size=16), Conditions(draft_tokens=3))
    assert "neither what they save nor what they cost" in uncounted
    (counted,) = differences(Conditions(block_size=16), Conditions(draft_tokens=3, accepted_share=0.8))
    assert "80% of them are counted" in counted


def test_a_forecast_states_the_stacks_accepted_share_of_draft_tokens():
    asked = config.Engine(speculation=Speculation(tokens=2, accepted_share=0.7))
    started = deployed_conditions(NEW, MODEL, asked).handing_over
    assert (started.draft_tokens, started.accepted_share) == (2, 0.7)
    _, trust = confine(question(), FIGURES, allow_extrapolation=True, started=deployed_conditions(NEW, MODEL, asked))
    assert trust.basis is Basis.BOUND
    assert any(item.startswith("drafted tokens of a step 2: 70%") for item in trust.conditions)
