"""Answers that the real plug-in gave, given again by the stand-in."""

import copy
from typing import Any

import grpc
import pytest
from llmd_rehearsal.plugin_protocol import provider
from oci_recordings import RECORDINGS, plain, recorded, struct, tree, urn

CHECKS = recorded("checks.jsonl")
DIFFS = recorded("diffs.jsonl")

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason=f"no recordings of the real plug-in at {RECORDINGS}")


def _case(line: dict[str, Any]) -> str:
    return f"{line.get('case', '')}-{line['method']}-{line['name']}"


def _change(line: dict[str, Any]) -> str:
    return f"{line['type'].rpartition(':')[2]}-{'-'.join(line['change'])}"


@pytest.mark.parametrize("line", [line for line in CHECKS if line["method"] == "Check"], ids=_case)
def test_the_oci_stand_in_answers_check_calls_as_recorded_from_the_real_plug_in(stub: Any, line: dict[str, Any]):
    request = provider.CheckRequest(
        urn=urn(line["type"], line["name"]), type=line["type"], name=line["name"], news=struct(line["news"])
    )
    if line.get("errors"):
        with pytest.raises(grpc.RpcError) as failure:
            stub.Check(request)
        assert line["errors"][0].endswith(failure.value.details())  # pyright: ignore[reportAttributeAccessIssue]
        return
    answer = stub.Check(request)
    expected, given = plain(line["inputs"]), tree(answer.inputs)
    if "name" in expected["__defaults"]:
        assert given["name"].startswith(f"{line['name']}-")
        assert len(given["name"]) == len(expected["name"])
        expected["name"] = given["name"]
    assert given == expected
    reasons = sorted(failure["reason"] for failure in line["failures"] or ())
    assert sorted(failure.reason for failure in answer.failures) == reasons


@pytest.mark.parametrize("line", [line for line in CHECKS if line["method"] == "Create"], ids=_case)
def test_the_oci_stand_in_answers_preview_calls_as_recorded_from_the_real_plug_in(stub: Any, line: dict[str, Any]):
    request = provider.CreateRequest(
        urn=urn(line["type"], line["name"]),
        type=line["type"],
        name=line["name"],
        properties=struct(line["properties"]),
        preview=True,
    )
    assert tree(stub.Create(request).properties) == plain(line["outputs"])


@pytest.mark.parametrize("line", DIFFS, ids=_change)
def test_the_oci_stand_in_answers_diff_calls_as_recorded_from_the_real_plug_in(stub: Any, line: dict[str, Any]):
    news = copy.deepcopy(line["base"])
    for path, value in line["change"].items():
        *parents, last = path.split(".")
        place = news
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    request = provider.DiffRequest(
        urn=urn(line["type"], "it"), type=line["type"], name="it", id="id", olds=struct(line["base"]), news=struct(news)
    )
    answer = stub.Diff(request)
    kinds = {path: provider.PropertyDiff.Kind.Name(item.kind) for path, item in answer.detailedDiff.items()}
    assert kinds == line["detailedDiff"]
    assert provider.DiffResponse.DiffChanges.Name(answer.changes) == line["changes"]
    assert sorted(answer.replaces) == sorted(line["replaces"])
    assert sorted(answer.diffs) == sorted(line["diffs"])
    assert answer.deleteBeforeReplace == line["deleteBeforeReplace"]
