"""Deprecated keys of the stack file: the table, and what a stack file that has them is read as."""

import re

import pytest
from llmd_base.errors import InvalidStack
from llmd_oke import __version__, planning
from llmd_oke.config import validate
from llmd_oke.config.deprecated_keys import deprecated_keys, replace_keys
from llmd_oke.config.schema import stack_file_schema
from stack_files import PROJECT, created_stack, model, stack

IMAGE = "ocid1.image.oc1.iad.there"


def keys_of(schema: dict, path: str) -> set[str]:
    """Keys that the schema of stack files has at a path."""
    nodes = [schema["$defs"]["Stack"]]
    for step in path.split(".") if path else ():
        nodes = [
            inner
            for node in resolved(schema, nodes)
            if (inner := node.get("properties", {}).get(step.removesuffix("[]")))
        ]
        if step.endswith("[]"):
            nodes = [node["items"] for node in resolved(schema, nodes) if "items" in node]
    return {key for node in resolved(schema, nodes) for key in node.get("properties", {})}


def resolved(schema: dict, nodes: list[dict]) -> list[dict]:
    found = []
    for node in nodes:
        if "$ref" in node:
            found += resolved(schema, [schema["$defs"][node["$ref"].rsplit("/", 1)[1]]])
        else:
            found += [node, *resolved(schema, [*node.get("anyOf", ()), *node.get("oneOf", ())])]
    return found


def test_the_replacement_of_a_deprecated_key_is_a_key_of_stack_files():
    schema = stack_file_schema(with_texts=False)
    for entry in deprecated_keys():
        parent, _, key = entry.key.rpartition(".")
        assert (key in keys_of(schema, parent)) == (entry.argument is not None), entry
        assert bool(entry.replacement) != bool(entry.by_hand), entry
        if entry.replacement:
            parent, _, key = entry.replacement.rpartition(".")
            assert key in keys_of(schema, parent), entry


def test_a_key_is_deprecated_in_an_earlier_version_than_it_is_removed_in():
    for entry in deprecated_keys():
        versions = [[int(part) for part in version.split(".")] for version in (entry.since, entry.removed_in)]
        assert versions == sorted(versions), entry
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_a_deprecated_key_has_the_effect_of_its_replacement_and_is_advised():
    written = created_stack(cluster={"lookupResults": None, "given": {"systemImageId": IMAGE}})
    written["cluster"].pop("lookupResults")
    assert validate(written).cluster.lookup_results.system_image_id == IMAGE
    told = [item for item in planning.plan_object(written).advice if item.path == "cluster.given"]
    assert [item.kind for item in told] == ["decision"]
    assert "it is cluster.lookupResults now. `llmd-oke migrate --write`" in told[0].text
    assert "given" in written["cluster"]

    assert not [item for item in planning.plan_object(created_stack()).advice if "deprecated" in item.text]


@pytest.mark.parametrize(
    ("value", "path"), [({"systemImageId": "no OCID"}, "cluster.given.systemImageId"), ("no object", "cluster.given")]
)
def test_a_problem_in_a_deprecated_key_is_reported_at_the_deprecated_path(value: object, path: str):
    written = created_stack(namespace="No Name")
    written["cluster"]["given"] = value
    written["cluster"].pop("lookupResults", None)
    with pytest.raises(InvalidStack) as refused:
        validate(written)
    assert [problem.path for problem in refused.value.problems] == [path, "namespace"]


def test_a_deprecated_key_beside_its_replacement_is_refused():
    written = created_stack(cluster={"lookupResults": {}})
    written["cluster"]["given"] = {}
    with pytest.raises(InvalidStack, match=r"cluster\.lookupResults replaces it, and is there too"):
        validate(written)


@pytest.mark.parametrize(
    ("arguments", "engine"),
    [
        (["--max-loras=4"], {"adapters": {"slots": 4}}),
        (["--max-loras", "4", "--x"], {"extraArgs": ["--x"], "adapters": {"slots": 4}}),
        (["--x", "--enable-lora"], {"extraArgs": ["--x"], "adapters": {}}),
        (["--max_lora_rank=8", "--enable-lora"], {"adapters": {"maxRank": 8}}),
        (["--all2all-backend=mori_low_latency"], {"all2AllBackend": "mori_low_latency"}),
    ],
)
def test_vllm_arguments_that_became_stack_file_keys_are_replaced_by_those_keys(arguments: list[str], engine: dict):
    written = stack(model("agg-tp1-8r", engine={"extraArgs": arguments}))
    replaced, problems = replace_keys(written, deprecated_keys())
    assert (written["models"][0]["engine"], problems) == (engine, [])
    assert replaced
    assert all(item.path == f"models[0].engine.extraArgs: {item.entry.argument}" for item in replaced)
    assert replace_keys(written, deprecated_keys()) == ([], [])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--max-loras=many"], "--max-loras has no number"),
        (["--max-loras=1", "--max-loras=2"], "it is there several times"),
        (["--speculative-config={}"], "what replaces it is a decision"),
    ],
)
def test_vllm_arguments_that_cannot_become_stack_file_keys_are_kept_and_reported(arguments: list[str], why: str):
    written = stack(model("agg-tp1-8r", engine={"extraArgs": list(arguments)}))
    replaced, problems = replace_keys(written, deprecated_keys())
    assert (replaced, [problem.why for problem in problems]) == ([], [why])
    assert written["models"][0]["engine"] == {"extraArgs": arguments}


@pytest.mark.parametrize(
    "odd",
    [
        *(None, [], "x", {"models": None}, {"models": [None, {"engine": []}]}, {"cluster": []}),
        *({"models": [{"engine": {"extraArgs": words}}]} for words in (5, [5])),
    ],
)
def test_replacing_deprecated_keys_leaves_malformed_objects_unchanged(odd: object):
    assert replace_keys(odd, deprecated_keys()) == ([], [])


def test_the_versions_page_lists_each_deprecated_key():
    rows = [
        f"| `{entry.key}`{f': `{entry.argument}`' if entry.argument else ''} | {entry.since} | {entry.removed_in} | "
        + (f"`{entry.replacement}` |" if entry.replacement else f"by hand: {entry.by_hand} |")
        for entry in deprecated_keys()
    ]
    page = (PROJECT / "docs" / "versions.md").read_text().splitlines()
    assert [line for line in page if line.startswith("| `")] == rows
