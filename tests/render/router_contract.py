"""A router's objects beside those that the upstream chart of its release renders, difference by difference."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmd_oke import catalogue
from llmd_oke.serving import gateway, picker_config, router
from llmd_oke.values import read_yaml, read_yaml_documents, values_folder
from llmd_rehearsal.plugin_values import is_list, is_map
from render_support import PROJECT, SHARED_DATA

UNIT = "gpt-oss-120b"

BEHIND_GATEWAY = "llm-d-0.9.0 behind a Gateway"
"""What the table calls the newest release with `router.mode: gateway`."""

ONE_PICKER = "llm-d-0.9.0 with one endpoint picker"
"""What the table calls the newest release with `router.replicas: 1`."""

CHARTS = {
    "llm-d-0.6.0": PROJECT / "tests" / "render" / "charts" / "gaie-standalone-v1.4.0.yaml",
    "llm-d-0.7.0": PROJECT / "tests" / "render" / "charts" / "gaie-standalone-v1.5.0.yaml",
    "llm-d-0.9.0": SHARED_DATA / "router-chart-0.10.0" / "standalone-ha.yaml",
    ONE_PICKER: SHARED_DATA / "router-chart-0.10.0" / "standalone-defaults.yaml",
    BEHIND_GATEWAY: SHARED_DATA / "router-chart-0.10.0" / "gateway-httproute.yaml",
}
"""What each release's chart renders for a unit: with one replica of the router, or with as many as the release has."""

_CHART_NAMES = {
    ONE_PICKER: "llm-d-router v0.10.0, llm-d-router-standalone",
    BEHIND_GATEWAY: "llm-d-router v0.10.0, llm-d-router-gateway",
}

_IDENTITIES = ("name", "mountPath", "topologyKey", "number")
"""What tells the elements of a list apart."""

Objects = Mapping[str, Mapping[str, Any]]


def upstream(release: str) -> Objects:
    """Return what the chart renders, by kind and name; skip where the recording is absent."""
    if not CHARTS[release].is_file():
        pytest.skip(f"{CHARTS[release]} is absent")
    return _by_name(read_yaml_documents(CHARTS[release]))


def ours(release: str) -> Objects:
    """The kit's objects for the same unit, with the picker's config that the chart was given."""
    name = release.partition(" ")[0]
    facts = catalogue.release(name)
    assert facts is not None
    args: picker_config.RouterArgs = {
        "release": name,
        "namespace": "llm-d",
        "model": UNIT,
        "unit": UNIT,
        "disaggregated": True,
        "replicas": 1 if release == ONE_PICKER else None,
    }
    config = upstream(release)["ConfigMap <unit>-epp"]["data"]["pd-config.yaml"]
    if release != BEHIND_GATEWAY:
        return _by_name(router.manifests(facts, args, config))
    behind: picker_config.RouterArgs = {**args, "gateway": {"namespace": "llm-d", "labels": {"a": "b"}}}
    route: gateway.ModelRouteArgs = {
        "namespace": "llm-d",
        "model": UNIT,
        "units": [UNIT],
        "provider": "agentgateway",
        "gateway": "inference-gateway",
        "gateway_namespace": "llm-d",
        "service_host": "inference-gateway.llm-d.svc.cluster.local",
    }
    return _by_name([*router.manifests(facts, behind, config), *gateway.route_manifests(route)])


def differences(release: str) -> dict[str, tuple[str, str]]:
    """Return what differs, by its path: upstream's value and ours, empty where there is none."""
    theirs, own = upstream(release), ours(release)
    renamed = {row["upstream"]: row["ours"] for row in table()["renamed"]}
    theirs = {renamed.get(name, name): manifest for name, manifest in theirs.items()}
    different: dict[str, tuple[str, str]] = {}
    for name in sorted({*theirs, *own}):
        if name not in theirs or name not in own:
            different[name] = ("", "the object") if name in own else ("the object", "")
            continue
        left, right = dict(_flat(theirs[name])), dict(_flat(own[name]))
        for path in sorted({*left, *right}):
            if left.get(path) != right.get(path):
                different[f"{name} {path}"] = (left.get(path, ""), right.get(path, ""))
    return different


def table() -> Mapping[str, Any]:
    """The deviations that are meant, with their reasons."""
    return read_yaml(values_folder() / "router" / "deviations.yaml")


def rows(release: str) -> list[tuple[str, str]]:
    """Patterns of paths and reasons of the deviations that a release has."""
    return [
        (path, row["reason"])
        for row in table()["deviations"]
        if release in row.get("releases", CHARTS)
        for path in row["paths"]
    ]


def matches(pattern: str, path: str) -> bool:
    """Tell whether a path is one of the pattern, or lies in it; `*` stands for any text."""
    return re.match(re.escape(pattern).replace(r"\*", ".*") + r"($|[.\[ /])", path) is not None


def page() -> str:
    """The page of the docs."""
    lines = [
        "# Where the router's objects differ from upstream's charts",
        "",
        "The kit declares the objects of a router itself. A test holds them to what the chart of the same release",
        "renders, field by field: what is not in this table fails the test, and so does a row that no longer holds.",
        "The table is made from `values/router/deviations.yaml`.",
        "",
        "| Release | Chart |",
        "|---|---|",
        *(f"| {name} | {_chart_name(name)} |" for name in CHARTS),
        "",
        "| Where | Releases | Reason |",
        "|---|---|---|",
    ]
    renamed: list[dict[str, Any]] = [
        {"paths": [f"{row['upstream']} (here {row['ours']})"], **row} for row in table()["renamed"]
    ]
    for row in [*renamed, *table()["deviations"]]:
        where = "<br>".join(f"`{path}`" for path in row["paths"])
        lines += [f"| {where} | {', '.join(row.get('releases', ['all']))} | {row['reason'].strip()} |"]
    return "\n".join([*lines, ""])


def _chart_name(release: str) -> str:
    facts = catalogue.release(release)
    return facts.router.chart if facts else _CHART_NAMES[release]


def page_file() -> Path:
    """Return where the page lies."""
    return PROJECT / "docs" / "router-deviations.md"


def _by_name(manifests: Any) -> Objects:
    return {
        f"{manifest['kind']} {manifest['metadata']['name'].replace(UNIT, '<unit>')}": manifest for manifest in manifests
    }


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if is_map(value) and value:
        for key, part in value.items():
            yield from _flat(part, f"{path}.{key}".removeprefix("."))
    elif path.endswith(".args") and is_list(value):
        for flag, given in _flags(value).items():
            yield f"{path}[{flag}]", given
    elif path.endswith(".verbs"):
        yield path, ", ".join(sorted(value))
    elif is_list(value) and value:
        for index, part in enumerate(value):
            yield from _flat(part, f"{path}[{_identity(part, index)}]")
    elif path == "data.envoy.yaml" and isinstance(value, str):
        yield from _flat(yaml.safe_load(value), f"{path}:")
    elif path.endswith(".image"):
        yield from zip((path, f"{path}.digest"), str(value).split("@"), strict=False)
    else:
        yield path, str(value)


def _identity(part: Any, index: int) -> str:
    if is_map(part):
        if "apiGroups" in part:
            return f"{'+'.join(part['apiGroups'])}/{'+'.join(part['resources'])}"
        if "address" in part:  # of Envoy
            return str(part.get("name", index))
        return next((str(part[key]) for key in _IDENTITIES if key in part), str(index))
    return str(index)


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    last = ""
    for argument in map(str, arguments):
        if argument.startswith("-"):
            last, _, value = argument.partition("=")
            flags[last] = value
        else:
            flags[last] = argument
    return flags
