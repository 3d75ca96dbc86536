"""Sessions as they are deployed: a filter for each kind of server, and Envoys that leave their header in requests."""

import json
from typing import Any

import pytest
import yaml
from llmd_oke.catalogue.endpoint_pickers import endpoint_picker
from llmd_oke.testing import Rendered
from stack_files import model, stack

RELEASES = {"llm-d-0.9.0": "v0.10.0", "llm-d-0.10.0": "v0.11.0"}
SESSION = '["x-session-id"] = true'
"""In the table of headers that an Envoy takes out of requests."""


def deployed(rendered: Any, release: str, door: bool = False, profile: str = "session-affinity") -> Rendered:
    changes = {"frontDoor": {}} if door else {}
    models = [model("2p-tp1-2d-tp1", router={"profile": profile})]
    return rendered(stack(*models, release=release, **changes))


def texts(result: Rendered) -> dict[str, str]:
    """Files of ConfigMaps, by the name of the map."""
    maps = [m for m in result.manifests() if m["kind"] == "ConfigMap"]
    return {m["metadata"]["name"]: text for m in maps for text in (m.get("data") or {}).values()}


@pytest.mark.parametrize("release", RELEASES)
def test_the_picker_has_a_session_filter_for_each_role_of_servers(rendered: Any, release: str):
    (text,) = [text for name, text in texts(deployed(rendered, release)).items() if name.endswith("-epp")]
    config, picker = yaml.safe_load(text), endpoint_picker(RELEASES[release])
    filters = {p["name"]: p["parameters"] for p in config["plugins"] if p["type"] == "session-affinity-filter"}
    assert {name: own["profileName"] for name, own in filters.items()} == {
        "session-affinity-filter-prefill": "prefill",
        "session-affinity-filter-decode": "decode",
    }
    for profile in config["schedulingProfiles"]:
        names = [plugin["pluginRef"] for plugin in profile["plugins"]]
        assert names[:2] == [f"{profile['name']}-filter", f"session-affinity-filter-{profile['name']}"]
    assert list(picker.own_refusals(config, disaggregated=True)) == []


def cleaning(value: Any) -> list[str]:
    """Programs that clean headers, anywhere in an Envoy's config."""
    if isinstance(value, list):
        return [text for item in value for text in cleaning(item)]
    if not isinstance(value, dict):
        return []
    if value.get("name") == "client-headers":
        return [value["typed_config"]["default_source_code"]["inline_string"]]
    return [text for item in value.values() for text in cleaning(item)]


@pytest.mark.parametrize("door", [False, True])
def test_every_envoy_passes_the_session_header_on_to_the_picker(rendered: Any, door: bool):
    kept, taken = (
        [
            program
            for text in texts(deployed(rendered, "llm-d-0.9.0", door, profile)).values()
            if text.startswith("{")
            for program in cleaning(json.loads(text))
        ]
        for profile in ("session-affinity", "token-load")
    )
    assert len(kept) == len(taken) >= 2
    assert all(SESSION in program for program in taken)
    assert not any(SESSION in program for program in kept)


def test_session_ids_are_limited_in_length_before_the_picker_stores_them(rendered: Any):
    (text,) = [text for name, text in texts(deployed(rendered, "llm-d-0.9.0")).items() if name.endswith("-envoy")]
    assert "bound_sessions(handle)" in text
