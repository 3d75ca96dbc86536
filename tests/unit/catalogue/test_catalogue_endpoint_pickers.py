"""Endpoint pickers: configs that each version would start with, and what it would refuse."""

from itertools import product
from typing import Any

import pytest
from llmd_oke.catalogue.endpoint_pickers import EndpointPickerVersion, PickerConfig, endpoint_picker
from llmd_oke.config.model import PROFILE_NAMES
from llmd_oke.values import names

PICKERS = [endpoint_picker(name) for name in names("endpoint-pickers")]
by_picker = pytest.mark.parametrize("picker", PICKERS, ids=lambda picker: picker.version)


def config(picker: EndpointPickerVersion, profile: str = "prefix", **changes: Any) -> PickerConfig:
    settings: dict[str, Any] = {"disaggregated": True, "decider": "prefix", "non_cached_tokens": 16, **changes}
    return picker.config(profile, **settings)  # pyright: ignore[reportArgumentType]


@by_picker
def test_the_config_of_every_picker_profile_has_nothing_that_its_picker_refuses(picker: EndpointPickerVersion):
    for profile, disaggregated, decider in product(picker.profiles, (True, False), ("prefix", "always")):
        written = config(picker, profile, disaggregated=disaggregated, decider=decider)
        assert list(picker.refusals(written, experimental=True)) == [], (profile, disaggregated, decider)


@by_picker
def test_plugins_of_a_picker_profile_are_scorers_filters_and_their_producers(picker: EndpointPickerVersion):
    for profile in picker.profiles.values():
        weights = {**profile.prefill, **profile.decode, **profile.aggregated}
        assert {picker.plugins[name].kind for name in weights} == {"scorer"}
        assert {picker.plugins[name].kind for name in profile.filters} <= {"filter"}
        assert profile.sessions is None or picker.plugins[profile.sessions].kind == "filter"
        assert profile.parameters.keys() <= {*weights, *profile.filters, *profile.producers, profile.sessions}
        assert not any(picker.plugins[name].experimental or picker.plugins[name].deprecated for name in weights)


def test_newer_prefix_cache_scorers_refuse_parameters_that_moved_to_the_producer():
    older = config(endpoint_picker("v0.8.0"))
    refusals = [why for why, _ in endpoint_picker("v0.10.0").refusals(older)]
    assert "plugin prefix-cache-scorer has no parameter lruCapacityPerServer: it would be refused" in refusals
    assert "plugin prefix-cache-scorer has no parameter maxPrefixBlocksToMatch: it would be refused" in refusals
    assert len(refusals) == 2


def test_picker_v0_8_0_refuses_the_config_api_group_of_picker_v0_10_0():
    newer = config(endpoint_picker("v0.10.0"))
    assert newer["apiVersion"] == "llm-d.ai/v1alpha1"
    assert any("apiVersion" in why for why, _ in endpoint_picker("v0.8.0").refusals(newer))


def test_the_preparedataplugins_gate_is_set_only_in_pickers_that_have_it():
    written = config(endpoint_picker("v0.7.1"))
    assert written["featureGates"] == ["prepareDataPlugins"]
    for later in ("v0.8.0", "v0.10.0"):
        assert "featureGates" not in config(endpoint_picker(later))
        refusals = [why for why, _ in endpoint_picker(later).refusals(written)]
        assert "feature gate prepareDataPlugins is unknown or unregistered" in refusals


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"apiVersion": "llm-d.ai/v1"}, "doesn't read apiVersion llm-d.ai/v1"),
        ({"schedulingProfile": []}, "unknown key schedulingProfile"),
        ({"plugins": [{"type": "queue-scorer"}]}, "names plugin"),
        ({"plugins": [{"type": "topology-affinity-filter"}]}, "experimental"),
        ({"plugins": [{"type": "pd-scorer"}]}, "the kit knows of no plugin pd-scorer in endpoint picker v0.10.0"),
        ({"plugins": [{"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": "16"}}]}, "not of type"),
        ({"plugins": [{"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": True}}]}, "not of type"),
    ],
)
def test_the_kit_refuses_a_picker_config_that_the_pickers_version_would_refuse(change: dict[str, Any], refusal: str):
    picker = endpoint_picker("v0.10.0")
    assert any(refusal in why for why, _ in picker.refusals({**config(picker), **change}))


def test_a_picker_config_lists_the_decider_before_the_handler_that_uses_it():
    for decider, name in (("prefix", "prefix-based-pd-decider"), ("always", "always-disagg-pd-decider")):
        plugins: Any = config(endpoint_picker("v0.7.1"), decider=decider)["plugins"]
        types = [plugin["type"] for plugin in plugins]
        assert types.index(name) < types.index("disagg-profile-handler")


def test_a_profile_that_a_picker_version_lacks_has_a_nearest_existing_profile():
    assert endpoint_picker("v0.7.1").nearest_profile("token-load") == "running-requests"
    assert endpoint_picker("v0.10.0").nearest_profile("token-load") == "token-load"
    assert endpoint_picker("v0.7.1").nearest_profile("prefix-affinity") == "running-requests"
    assert all(set(picker.profiles) <= set(PROFILE_NAMES) for picker in PICKERS)
