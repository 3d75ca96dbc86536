"""Golden files of each kind of unit and each part beside units.

`golden/<component>.yaml` has the objects of one component. `golden/<choice>.diff` has what one choice of the stack file
changes in the rehearsal's stack: the lines that it takes away and adds, object by object. Hashes of content are left
out, so that a change shows where it was made and nowhere else.
"""

import difflib
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmd_oke.testing import Rendered
from render_support import recorded
from stack_files import StackObject, created_stack

Choice = Mapping[str, Any]
"""What is other than in the rehearsal's stack: keys of its model, and by `stack` of itself."""

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "LLMD_OKE_UPDATE_GOLDEN"
ACCEPT = f"set {UPDATE}=1 to accept this"
COMPONENT = "llmd-oke:index:"
LINE = 100
"""About as wide as a mapping or list may be to stand in one line."""

BASELINE: Choice = {"topology": "agg-tp1-16r", "router": {"mode": "none"}}
NODE_DISK: Choice = {"stack": {"storage": {"modelCache": {"kind": "node-disk", "path": "/mnt/nvme/models"}}}}
TWO_NODES = [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 2}]
SCALING = {
    "prefill": {"minReplicas": 4, "maxReplicas": 16, "promptTokensPerS": 20000},
    "decode": {"minReplicas": 2, "maxReplicas": 8, "requests": 40, "kvCacheUsage": 0.8},
}

FRONT_DOOR: Choice = {
    "copies": 2,
    "topology": "2p-tp1-2d-tp2",
    "stack": {
        "frontDoor": {
            "exposure": "internal",
            "host": "llm.example.com",
            "hosts": {"gpt.example.com": "gpt-oss-120b"},
            "tls": {"kind": "issuer", "name": "internal"},
            "weights": {"gpt-oss-120b-0": 90, "gpt-oss-120b-1": 10},
        }
    },
}

GATEWAY: Choice = {
    "router": {"mode": "gateway", "route": {"hosts": ["gpt.example.com"], "headers": {"X-Team": "a"}}},
    "stack": {"gateway": {"mode": "create", "provider": "istio", "host": "gpt.example.com", "tls": "certificate"}},
}

COMPONENTS: dict[str, Choice] = {
    "AggregatedUnit": BASELINE,
    "Canary": {"stack": {"monitoring": "existing", "canaries": {}}},
    "FrontDoor": {},
    "Gateway": GATEWAY,
    "ImagePull": {},
    "ModelCache": NODE_DISK,
    "ModelEndpoint": BASELINE,
    "ModelMonitoring": {"stack": {"monitoring": "existing"}, "slo": {"ttftMs": 2000, "itlMs": 25}},
    "ModelRoute": GATEWAY,
    "ModelScaling": {"scaling": SCALING},
    "PrefillDecodeUnit": {},
    "Router": {},
    "ServingNamespace": {},
    "SmokeBenchmark": {},
    "StackFrontDoor": FRONT_DOOR,
}

CREATED: dict[str, StackObject] = {
    "Acceptance": created_stack(),
    "LeaderWorkerSetController": created_stack(leaderWorkerSets="install"),
    "PrometheusStack": created_stack(monitoring="install"),
}
"""Components that stacks have which create their clusters, or what all stacks of a cluster share."""

CHOICES: dict[str, tuple[tuple[str, ...], Choice]] = {
    "aggregated-servers": (("Router", "SmokeBenchmark"), {"topology": "agg-tp1-16r"}),
    "aggregated-servers-without-a-router": (("SmokeBenchmark",), {**BASELINE, "stack": {"smoke": {}}}),
    "api-server-anywhere": (
        ("PrefillDecodeUnit", "Router"),
        {"stack": {"cluster": {"mode": "existing", "identifier": "rehearsal"}}},
    ),
    "another-model": (
        ("PrefillDecodeUnit", "SmokeBenchmark"),
        {"model": "llama-3.3-70b-instruct-fp8-dynamic", "name": "gpt-oss-120b"},
    ),
    "copies": (("FrontDoor", "SmokeBenchmark"), {"copies": 2}),
    "front-door-of-the-stack": (("ModelEndpoint",), FRONT_DOOR),
    "behind-a-gateway": (("PrefillDecodeUnit", "Router"), GATEWAY),
    "full-nodes": (("ImagePull", "PrefillDecodeUnit", "Router"), {"stack": {"gpuPools": TWO_NODES}}),
    "larger-decode-servers": (("PrefillDecodeUnit", "ServingNamespace"), {"topology": "8p-tp1-2d-tp4"}),
    "model-cache": (("PrefillDecodeUnit",), NODE_DISK),
    "no-rdma": (
        ("PrefillDecodeUnit", "SmokeBenchmark"),
        {"stack": {"rdma": "none", "gpuPools": [{**TWO_NODES[0], "size": 1}]}, "topology": "2p-tp1-2d-tp2"},
    ),
    "oldest-router": (("PrefillDecodeUnit", "Router"), {"stack": {"override": {"router": "llm-d-0.6.0"}}}),
}


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_renders_the_objects_of_its_golden_file(varied: Callable[..., Rendered], component: str):
    """Compare with `golden/<component>.yaml`; `LLMD_OKE_UPDATE_GOLDEN=1` accepts a change; review its diff."""
    text = "---\n".join(objects(varied(**COMPONENTS[component]), component).values())
    assert recorded(GOLDEN / f"{component}.yaml", text, UPDATE) == text, ACCEPT


@pytest.mark.parametrize("component", CREATED)
def test_each_component_of_a_created_cluster_renders_the_objects_of_its_golden_file(
    rendered: Callable[..., Rendered], component: str
):
    text = "---\n".join(objects(rendered(CREATED[component]), component).values())
    assert recorded(GOLDEN / f"{component}.yaml", text, UPDATE) == text, ACCEPT


@pytest.mark.parametrize("choice", CHOICES)
def test_each_changed_stack_setting_changes_the_objects_as_its_golden_file_records(
    varied: Callable[..., Rendered], choice: str
):
    """Compare with `golden/<choice>.diff`; `LLMD_OKE_UPDATE_GOLDEN=1` accepts a change; review its diff."""
    components, changed = CHOICES[choice]
    text = difference(objects(varied(), *components), objects(varied(**changed), *components))
    assert recorded(GOLDEN / f"{choice}.diff", text, UPDATE) == text, ACCEPT


def test_every_object_of_a_stack_belongs_to_a_component_with_a_golden_file(stack: Rendered):
    known = {resource.urn: resource.type for resource in stack.resources}
    manifests = [item for item in stack.resources if item.type.startswith("kubernetes:")]
    assert {known[item.parent] for item in manifests} <= {f"{COMPONENT}{name}" for name in (*COMPONENTS, "Crds")}


def test_every_golden_file_belongs_to_a_component_or_a_stack_setting():
    assert {path.name for path in GOLDEN.iterdir()} == {
        *(f"{c}.yaml" for c in (*COMPONENTS, *CREATED)),
        *(f"{c}.diff" for c in CHOICES),
    }


def objects(rendered: Rendered, *components: str) -> dict[str, str]:
    """The Kubernetes objects and Helm releases of components as YAML, by their kind and name."""
    tokens = {f"{COMPONENT}{component}" for component in components}
    parents = {resource.urn for resource in rendered.resources if resource.type in tokens}
    texts: dict[str, str] = {}
    for resource in rendered.resources:
        if resource.parent in parents and "kind" in resource.inputs:
            manifest = json.loads(without_hashes(json.dumps(readable(resource.inputs))))
            texts[f"{manifest['kind']} {manifest['metadata'].get('name', resource.name)}"] = compact(manifest)
        elif resource.parent in parents and resource.type.startswith("kubernetes:helm"):
            texts[f"Release {resource.name}"] = compact(dict(resource.inputs))
    return texts


def without_hashes(text: str) -> str:
    """JSON without hashes of content: those in names, and those that labels, annotations and facts have."""
    named = re.sub(r"-(?:[0-9a-f]{8}|[0-9a-f]{10})(?![0-9a-f])", "", text)
    return re.sub(r'((?:llmd-oke/[a-z-]+|config_hash)(?:=|": "))[0-9a-f]{8,16}(?!\w)', r"\1HASH", named)


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The lines that are taken away and added, under the kind and name of their object."""
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        changed = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
        lines += [name, *(line for line in changed if not line.startswith("@@"))] if changed else []
    return "".join(f"{line}\n" for line in lines)


def readable(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with JSON as YAML, and without programs, which have tests of their own."""
    parts = {**manifest}
    if "binaryData" in manifest:
        parts["binaryData"] = dict.fromkeys(manifest["binaryData"], "a program")
    if manifest["kind"] == "ConfigMap" and "data" in manifest:
        parts["data"] = {name: content(name, text) for name, text in manifest["data"].items()}
    return parts


def content(name: str, text: str) -> Any:
    """A file of a ConfigMap. What the benchmark says of servers is held to their containers (`test_render_smoke`)."""
    if name.endswith(".py"):
        return "a program"
    value: Any = json.loads(text) if text.startswith("{") else text
    if name == "request.json" and "topology" in value:
        for servers in value["topology"]["servers"]:
            del servers["args"], servers["env"]
    return value


def compact(value: Any) -> str:
    """YAML that reads well in a diff: what fits a line is one, texts of several lines are blocks, no aliases."""
    node = Readable(io.StringIO(), sort_keys=False).represent_data(value)
    lay_out(node)
    return yaml.serialize(node, Dumper=Readable, width=10_000)


def lay_out(node: yaml.Node) -> int:
    """Put each mapping and list that fits into one line; return about how wide the node is there."""
    if not isinstance(node, yaml.CollectionNode):
        return LINE + 1 if "\n" in node.value else len(node.value)
    items: list[Any] = node.value
    parts = [part for pair in items for part in pair] if isinstance(node, yaml.MappingNode) else items
    width = sum(lay_out(part) + 2 for part in parts)
    node.flow_style = width <= LINE
    return width


class Readable(yaml.SafeDumper):
    """YAML without aliases, and with texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, value: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


Readable.add_representer(str, Readable.text)
