"""Prefill and decode pods beside those of llm-d's AMD overlays; `docs/parity.md` has every item and why ours differ."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from llmd_bench.deployment import Parallelism
from llmd_oke import catalogue
from llmd_oke.serving import units
from llmd_oke.serving.args import ServersArgs, UnitArgs
from llmd_oke.values import read_yaml

UPSTREAM: dict[str, Any] = read_yaml(Path(__file__).parent / "parity" / "amd-overlays.yaml")
PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
NONE = "-"
ROLES = ("prefill", "decode")

Items = dict[str, str]


def words(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Arguments by name; flags are `given`, and JSON is told without quotes."""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if value.startswith("{"):
            value = " ".join(f"{key}={of_key}" for key, of_key in json.loads(value).items())
        yield name, value if equals else "given"


def container_items(container: Mapping[str, Any], volumes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return what a model server's container says; the model comes first and has no name."""
    yield from ((f"argument {name}", value) for name, value in words(container["args"][1:]))
    for entry in container["env"]:
        yield f"variable {entry['name']}", entry.get("value") or f"from {next(iter(entry['valueFrom']))}"
    for kind in ("limit", "request"):
        yield from ((f"{kind} {name}", value) for name, value in container["resources"][f"{kind}s"].items())
    for kind in ("startup", "liveness", "readiness"):
        yield f"probe {kind}", probe(container[f"{kind}Probe"])
    yield from ((f"port {port['name']}", port["containerPort"]) for port in container["ports"])
    yield from ((f"mount {mount['mountPath']}", volumes[mount["name"]]) for mount in container["volumeMounts"])
    security = container["securityContext"]
    verbs = [f"{verb} {' '.join(names)}" for verb, names in sorted(security["capabilities"].items())]
    yield "security capabilities", ", ".join(verbs)
    yield "security allowPrivilegeEscalation", security["allowPrivilegeEscalation"]
    if "lifecycle" in container:
        yield "lifecycle preStop", f"sleep {container['lifecycle']['preStop']['sleep']['seconds']} s"


def probe(asked: Mapping[str, Any]) -> str:
    """A probe in words."""
    where = asked["httpGet"]["path"] if "httpGet" in asked else f"TCP {asked['tcpSocket']['port']}"
    times = f"after {asked.get('initialDelaySeconds', 0)} s, every {asked['periodSeconds']} s"
    return f"{where}, {times}, {asked.get('timeoutSeconds', 1)} s, {asked['failureThreshold']}"


def sidecar_items(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return what the routing sidecar says."""
    yield from ((f"sidecar argument {name}", value) for name, value in words(container["args"]))
    yield "sidecar port", container["ports"][0]["containerPort"]
    for kind in ("startup", "readiness"):
        yield f"sidecar probe {kind}", probe(container[f"{kind}Probe"])
    requests = container["resources"]["requests"]
    yield "sidecar requests", " ".join(f"{name}={value}" for name, value in sorted(requests.items()))
    security = container["securityContext"]
    plain = [f"{name}={str(security[name]).lower()}" for name in ("allowPrivilegeEscalation", "runAsNonRoot")]
    yield "sidecar security", " ".join(plain)
    yield "sidecar readOnlyRootFilesystem", security["readOnlyRootFilesystem"]
    yield "sidecar capabilities", f"drop {' '.join(security['capabilities']['drop'])}"
    if "volumeMounts" in container:
        yield "sidecar mounts", " ".join(mount["mountPath"] for mount in container["volumeMounts"])


def volume(described: Mapping[str, Any]) -> str:
    """A volume in words."""
    if "hostPath" in described:
        return f"host {described['hostPath']['path']}"
    if described.get("emptyDir", {}).get("medium") == "Memory":
        return f"memory {described['emptyDir']['sizeLimit']}"
    return "scratch"


def ours(overlay: Mapping[str, Any], role: str) -> Items:
    """The items of our pod in the place of an overlay's: default release or the overlay's, same model family, sizes and
    network, and those of its settings that a stack file has keys for.
    """
    args: UnitArgs = {
        "release": release_of(overlay),
        "model": overlay["model"],
        "shape": shape_of(overlay),
        "virtual_functions": overlay.get("virtual_functions"),
        "namespace": "llm-d",
        "service_account": "model-server",
        "rdma": overlay["rdma"],
        "priority_class_prefix": "llm-d",
        "inference_pool": "unit",
        "engine": overlay.get("engine", {}),
        "override": overlay.get("override"),
    }
    spread = Parallelism(overlay["sizes"][role], **overlay.get("ranks", {}))
    spec = units.server_spec(args, role, spread)
    template = units.pod_template("unit", args, spec)
    pod = template["spec"]
    volumes = {entry["name"]: volume(entry) for entry in pod["volumes"]}
    matches = dict(container_items(pod["containers"][0], volumes))
    *before, sidecar = pod.get("initContainers", ()) or (None,)
    matches |= {f"init container {container['name']}": "given" for container in before}
    matches |= {} if sidecar is None else dict(sidecar_items(sidecar))
    for name in (
        "terminationGracePeriodSeconds",
        "priorityClassName",
        "nodeSelector",
        "tolerations",
        "securityContext",
    ):
        matches[f"pod {name}"] = json.dumps(pod[name]).strip('"')
    if spread.nodes > 1:
        matches |= dict(set_items(units.workload("unit", "unit", args, servers(spread), spec)))
    for name in ("automountServiceAccountToken", "enableServiceLinks"):
        matches[f"pod {name}"] = pod[name]
    for name, value in template["metadata"].get("annotations", {}).items():
        networks = [f"{item['namespace']}/{item['name']}@{item['interface']}" for item in json.loads(value)]
        matches[f"annotation {name}"] = " ".join(networks)
    return texts(matches)


def servers(spread: Parallelism) -> ServersArgs:
    """Arguments of one server with that spread."""
    size, ranks = spread.tensor_parallel_size, spread.data_parallel_size
    return {"replicas": 1, "tensor_parallel_size": size, "data_parallel_size": ranks, "nodes": spread.nodes}


def set_items(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return what the object of a role whose servers span nodes says beside its pods."""
    spec = manifest["spec"]
    yield "set kind", manifest["kind"]
    yield "set replicas", spec["replicas"]
    yield "set size", spec["leaderWorkerTemplate"]["size"]
    rolling = spec["rolloutStrategy"]["rollingUpdateConfiguration"]
    yield "set roll-out", f"maxSurge {rolling['maxSurge']}, maxUnavailable {rolling['maxUnavailable']}"
    (kind,) = spec["leaderWorkerTemplate"]["workerTemplate"]["spec"]["affinity"]
    yield "set affinity", kind


def release_of(overlay: Mapping[str, Any]) -> str:
    """The release that an overlay is held to."""
    return overlay.get("release") or catalogue.default_release().name


def shape_of(overlay: Mapping[str, Any]) -> str:
    """The shape of the nodes that an overlay is compared on."""
    return overlay.get("shape", "BM.GPU.MI300X.8")


def theirs(overlay: Mapping[str, Any], role: str) -> Items:
    """The items of an overlay's pod, with those of the recipe that it patches."""
    recipe = UPSTREAM["recipe"] if overlay.get("recipe", True) else {"both": {}, role: {}}
    return texts({**recipe["both"], **recipe[role], **overlay["both"], **overlay[role]})


def texts(items: Mapping[str, Any]) -> Items:
    """Items as they are told."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in items.items()}


def page() -> str:
    """The whole table."""
    lines = [
        "# Prefill and decode pods beside llm-d's AMD overlays",
        "",
        "Made by `tests/render/test_render_parity.py` from what the kit declares for"
        f" {catalogue.default_release().name}",
        "on BM.GPU.MI300X.8, where a heading names no other shape, and from `tests/render/parity/amd-overlays.yaml`;",
        "it writes this page with `LLMD_OKE_UPDATE_GOLDEN=1`. A difference without a reason fails it.",
    ]
    for name, overlay in UPSTREAM["overlays"].items():
        sizes = ", ".join(f"{role} TP{overlay['sizes'][role]}" for role in ROLES)
        source = f"{UPSTREAM['repository']}/tree/{overlay['commit']}/{overlay['path']}"
        release = f", {overlay['release']}" if "release" in overlay else ""
        ranks = f", {overlay['ranks']['data_parallel_size']} ranks on two nodes each" if "ranks" in overlay else ""
        shape = f", {overlay['shape']}" if "shape" in overlay else ""
        lines += ["", f"## `{name}`: {overlay['model']}, {sizes}{ranks}{release}{shape}", ""]
        lines += [f"[{overlay['commit'][:8]}]({source})", ""]
        lines += [overlay["note"], ""] if "note" in overlay else []
        lines += ["| item | role | llm-d | here | why |", "|---|---|---|---|---|", *rows(overlay)]
    return "\n".join(lines) + "\n"


def rows(overlay: Mapping[str, Any]) -> Iterator[str]:
    """A line for each item, or two where the roles differ."""
    sides = {role: (theirs(overlay, role), ours(overlay, role)) for role in ROLES}
    for item in sorted({name for both in sides.values() for side in both for name in side}):
        pairs = {role: tuple(side.get(item, NONE) for side in sides[role]) for role in ROLES}
        alike = len(set(pairs.values())) == 1
        for role in ROLES[:1] if alike else ROLES:
            upstream, own = pairs[role]
            if upstream == own == NONE:
                continue
            why = "" if upstream == own else reasons(overlay).get(item, "")
            yield f"| {item} | {'both' if alike else role} | {upstream} | {own} | {why} |"


def reasons(overlay: Mapping[str, Any]) -> Items:
    """Reasons for what differs from an overlay: its own, else those of all."""
    return {**UPSTREAM["reasons"], **overlay.get("reasons", {})}


def differences(overlay: Mapping[str, Any]) -> set[str]:
    """Items that are not the same in an overlay's pod and ours."""
    matches: set[str] = set()
    for role in ROLES:
        upstream, own = theirs(overlay, role), ours(overlay, role)
        matches |= {item for item in upstream.keys() | own.keys() if upstream.get(item) != own.get(item)}
    return matches


@pytest.mark.parametrize("name", UPSTREAM["overlays"])
def test_each_difference_from_llm_ds_overlays_has_a_documented_reason(name: str):
    overlay = UPSTREAM["overlays"][name]
    assert sorted(differences(overlay) - set(reasons(overlay))) == []


def test_each_documented_difference_from_llm_ds_overlays_still_exists():
    overlays = UPSTREAM["overlays"].values()
    assert set(UPSTREAM["reasons"]) <= set().union(*map(differences, overlays))
    for overlay in overlays:
        assert set(overlay.get("reasons", {})) <= differences(overlay)


def test_the_parity_page_equals_what_is_generated_from_the_declarations():
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()


@pytest.mark.parametrize("name", UPSTREAM["overlays"])
def test_every_compared_llm_d_overlay_names_the_commit_that_it_was_read_at(name: str):
    assert len(UPSTREAM["overlays"][name]["commit"]) == 40
