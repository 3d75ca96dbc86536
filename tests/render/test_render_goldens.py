"""Golden files of each kind of unit and each part beside units.

`golden/<component>.yaml` has the objects of one component. `golden/<choice>.diff` has what one choice of the stack file
changes in the rehearsal's stack: the lines that it takes away and adds, object by object. Hashes of content are left
out, so that a change shows where it was made and nowhere else. `golden/least-arguments` has what a component without
optional arguments declares other than in a stack, `golden/all-arguments` what its optional arguments change.
"""

import base64
import difflib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, is_typeddict

import pytest
import yaml
from created_cluster import layer_of, network_layer
from golden_arguments import ALL_ARGUMENTS
from golden_stacks import CHOICES, CLUSTER, COMPONENTS, CREATED, CREATED_CHOICES, LEAST_ARGUMENTS
from llmd_oke.package import components
from llmd_oke.testing import Rendered, declared, without_hash
from render_support import recorded

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "LLMD_OKE_UPDATE_GOLDEN"
ACCEPT = f"set {UPDATE}=1 to accept this"
COMPONENT = "llmd-oke:index:"
CLASSES: dict[str, Any] = {component.__name__: component for component in components()}
LINE = 100
"""About as wide as a mapping or list may be to stand in one line."""
ALL_OPTIONS = "resource-options"
ALL_OUTPUTS = "component-outputs"
LEAST, ALL = "least-arguments", "all-arguments"
OPTIONS = (
    *("timeouts", "secret_inputs", "additional_secret_outputs", "deleted_with", "ignore_changes"),
    *("replace_on_changes", "delete_before_replace", "retain_on_delete", "protect"),
)
"""Options of resources in the order of their golden file. Dependencies are tested by what must come first."""


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_renders_the_objects_of_its_golden_file(varied: Callable[..., Rendered], component: str):
    """Compare with `golden/<component>.yaml`; `LLMD_OKE_UPDATE_GOLDEN=1` accepts a change; review its diff."""
    text = "---\n".join(map(compact, objects(varied(**COMPONENTS[component]), component).values()))
    assert recorded(GOLDEN / f"{component}.yaml", text, UPDATE) == text, ACCEPT


@pytest.mark.parametrize("component", CREATED)
def test_each_component_of_a_created_cluster_has_the_resources_of_its_golden_file(
    rendered: Callable[..., Rendered], component: str
):
    text = "---\n".join(map(compact, objects(rendered(CREATED[component]), component).values()))
    assert recorded(GOLDEN / f"{component}.yaml", text, UPDATE) == text, ACCEPT


@pytest.mark.parametrize("choice", CHOICES)
def test_each_changed_stack_setting_changes_the_objects_as_its_golden_file_records(
    varied: Callable[..., Rendered], choice: str
):
    """Compare with `golden/<choice>.diff`; `LLMD_OKE_UPDATE_GOLDEN=1` accepts a change; review its diff."""
    change = CHOICES[choice]
    before, after = varied(**change.base), varied(**change.choice, secrets=change.secrets)
    text = difference(objects(before, *change.components), objects(after, *change.components))
    assert recorded(GOLDEN / f"{choice}.diff", text, UPDATE) == text, ACCEPT


@pytest.mark.parametrize("choice", CREATED_CHOICES)
def test_each_changed_cluster_setting_changes_resources_as_its_golden_file_records(
    rendered: Callable[..., Rendered], choice: str
):
    components, changed = CREATED_CHOICES[choice]
    before, after = rendered(network_layer()), rendered(layer_of(changed))
    text = difference(objects(before, *components), objects(after, *components))
    assert recorded(GOLDEN / f"{choice}.diff", text, UPDATE) == text, ACCEPT


@pytest.mark.parametrize("name", LEAST_ARGUMENTS)
def test_components_without_optional_arguments_declare_what_golden_files_record(
    varied: Callable[..., Rendered], rendered: Callable[..., Rendered], name: str
):
    """Programs of others leave arguments out that stacks always give."""
    component = name.partition(" ")[0]
    of_stack = varied(**COMPONENTS[component]) if component in COMPONENTS else rendered(CREATED[component])
    arguments = LEAST_ARGUMENTS[name]
    alone = declared(lambda: CLASSES[component](arguments.get("model", component.lower()), arguments))
    text = difference(objects(of_stack, component), objects(alone, component))
    assert recorded(GOLDEN / LEAST / f"{name.replace(' ', '-')}.diff", text, UPDATE) == text, ACCEPT


@pytest.mark.parametrize("name", ALL_ARGUMENTS)
def test_optional_arguments_of_components_change_what_golden_files_record(name: str):
    """Objects, options of resources and outputs, compared with those of the arguments that the component needs."""
    component = name.partition(" ")[0]
    needed, more = ALL_ARGUMENTS[name]
    before, after = (
        declared(lambda given=given: CLASSES[component](component.lower(), given))
        for given in (needed, {**needed, **more})
    )
    text = difference(everything(before, component), everything(after, component))
    assert recorded(GOLDEN / ALL / f"{name.replace(' ', '-')}.diff", text, UPDATE) == text, ACCEPT


def test_every_optional_argument_of_a_component_is_in_a_case_of_its_golden_files():
    used: set[tuple[str, str]] = set()
    optional: set[tuple[str, str]] = set()
    for name, (needed, more) in ALL_ARGUMENTS.items():
        kind = CLASSES[name.partition(" ")[0]].__init__.__annotations__["args"]
        used.update(arguments_of(kind, {**needed, **more}))
        optional.update(optional_arguments(kind))
    assert optional - used == set()


def test_options_of_all_resources_of_a_created_cluster_are_those_of_the_golden_file(rendered: Callable[..., Rendered]):
    """Timeouts, what replaces, deletes and protects a resource, and its secrets."""
    text = compact(options(rendered(CLUSTER)))
    assert recorded(GOLDEN / f"{ALL_OPTIONS}.yaml", text, UPDATE) == text, ACCEPT


def test_components_register_the_outputs_that_the_golden_file_records(
    varied: Callable[..., Rendered], rendered: Callable[..., Rendered]
):
    stacks = {name: varied(**choice) for name, choice in COMPONENTS.items()}
    stacks |= {name: rendered(stack) for name, stack in CREATED.items()}
    outputs = {
        resource.type.removeprefix(COMPONENT): json.loads(without_hashes(json.dumps(dict(resource.outputs))))
        for name, stack in stacks.items()
        for resource in stack.of_type(f"{COMPONENT}{name}")
    }
    text = compact(outputs)
    assert recorded(GOLDEN / f"{ALL_OUTPUTS}.yaml", text, UPDATE) == text, ACCEPT


def test_every_object_of_a_stack_belongs_to_a_component_with_a_golden_file(stack: Rendered):
    known = {resource.urn: resource.type for resource in stack.resources}
    manifests = [item for item in stack.resources if item.type.startswith("kubernetes:")]
    assert {known[item.parent] for item in manifests} <= {f"{COMPONENT}{name}" for name in (*COMPONENTS, "Crds")}


def test_every_golden_file_belongs_to_a_component_or_a_stack_setting():
    assert {path.name for path in GOLDEN.iterdir()} == {
        *(f"{c}.yaml" for c in (*COMPONENTS, *CREATED, ALL_OPTIONS, ALL_OUTPUTS)),
        *(f"{c}.diff" for c in (*CHOICES, *CREATED_CHOICES)),
        *(LEAST, ALL, "jobs", "plans"),
    }
    assert {path.stem.replace("-", " ") for path in (GOLDEN / LEAST).iterdir()} == {*LEAST_ARGUMENTS}
    assert {path.stem.replace("-", " ") for path in (GOLDEN / ALL).iterdir()} == {*ALL_ARGUMENTS}


def objects(rendered: Rendered, *components: str) -> dict[str, Any]:
    """The Kubernetes objects, Helm releases and resources of OCI of components, by their kind and name."""
    tokens = {f"{COMPONENT}{component}" for component in components}
    parents = {resource.urn for resource in rendered.resources if resource.type in tokens}
    found: dict[str, Any] = {}
    for resource in rendered.resources:
        if resource.parent not in parents:
            continue
        if "kind" in resource.inputs and resource.type.startswith("kubernetes:"):
            manifest = json.loads(without_hashes(json.dumps(readable(resource.inputs))))
            found[f"{manifest['kind']} {manifest['metadata'].get('name', resource.name)}"] = manifest
        elif resource.type.startswith("kubernetes:helm"):
            found[f"Release {resource.name}"] = dict(resource.inputs)
        elif not resource.type.startswith(COMPONENT):
            name = f"{resource.type} {resource.name}"
            inputs = json.loads(without_hashes(json.dumps(dict(resource.inputs))), object_hook=with_script)
            found[name] = {"resource": name, **inputs}
    return found


def everything(rendered: Rendered, component: str) -> dict[str, Any]:
    """The objects of a component, and the options of its resources and its outputs by their names."""
    of_resources = {f"options of {own.pop('type')} {own.pop('resource')}": own for own in options(rendered)}
    (root,) = rendered.of_type(f"{COMPONENT}{component}")
    return {
        **objects(rendered, component),
        **of_resources,
        "outputs": json.loads(without_hashes(json.dumps(dict(root.outputs)))),
    }


def optional_arguments(kind: Any) -> Iterator[tuple[str, str]]:
    """Type and name of each optional argument of a type, and of the types in it."""
    if is_typeddict(kind):
        yield from ((kind.__name__, name) for name in kind.__optional_keys__)
    for part in kind.__annotations__.values() if is_typeddict(kind) else get_args(kind):
        yield from optional_arguments(part)


def arguments_of(kind: Any, value: Any) -> Iterator[tuple[str, str]]:
    """Type and name of each argument in a value of a type."""
    if is_typeddict(kind) and isinstance(value, Mapping):
        given = {name: item for name, item in value.items() if item is not None}
        yield from ((kind.__name__, name) for name in given)
        for name, item in given.items():
            yield from arguments_of(kind.__annotations__[name], item)
    elif get_origin(kind) in {dict, list, Mapping, Sequence} and isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from arguments_of(get_args(kind)[-1], item)
    else:
        for part in get_args(kind):
            yield from arguments_of(part, value)


def with_script(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a resource, with the boot script of nodes as text."""
    script = fields.get("user_data")
    return {**fields, "user_data": base64.b64decode(script).decode()} if script else fields


def options(rendered: Rendered) -> list[dict[str, Any]]:
    """The options of resources that are other than Pulumi's defaults."""
    names = {resource.urn: without_hash(resource.name) for resource in rendered.resources}
    found = [
        {
            "resource": names[resource.urn],
            "type": resource.type,
            **{name: value for name in OPTIONS if (value := plain(getattr(resource, name), names))},
        }
        for resource in rendered.resources
    ]
    return [own for own in found if len(own) > 2]


def plain(value: Any, names: Mapping[str, str]) -> Any:
    """An option as YAML has it, with names in place of URNs."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | frozenset):
        return sorted(names.get(item, item) for item in value)
    return names.get(value, value)


def without_hashes(text: str) -> str:
    """JSON without hashes of content: those in names, and those that labels, annotations and facts have."""
    named = re.sub(r"-(?:[0-9a-f]{8}|[0-9a-f]{10})(?![0-9a-f])", "", text)
    return re.sub(r'((?:llmd-oke/[a-z-]+|config_hash|version)(?:=|": "))[0-9a-f]{8,16}(?!\w)', r"\1HASH", named)


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The lines of YAML that are taken away and added, under the kind and name of their object."""
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        if repr(before.get(name)) == repr(after.get(name)):  # unlike True and 1, which are equal
            continue
        old, new = (compact(parts[name]).splitlines() if name in parts else [] for parts in (before, after))
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
    if name.endswith((".py", ".lock")):
        return "a program" if name.endswith(".py") else "packages with their hashes"
    value: Any = json.loads(text) if text.startswith("{") else text
    if name == "request.json" and "topology" in value:
        for servers in value["topology"]["servers"]:
            del servers["args"], servers["env"]
    return value


def compact(value: Any) -> str:
    """YAML that reads well in a diff: what fits a line is one, texts of several lines are blocks, no aliases."""
    node = Readable(io.StringIO(), sort_keys=False).represent_data(value)
    lay_out(node)
    return yaml.serialize(node, Dumper=Readable, width=10_000, allow_unicode=True)


def lay_out(node: yaml.Node) -> int:
    """Put each mapping and list that fits into one line; return about how wide the node is there."""
    if not isinstance(node, yaml.CollectionNode):
        return LINE + 1 if "\n" in node.value else len(node.value)
    items: list[Any] = node.value
    parts = [part for pair in items for part in pair] if isinstance(node, yaml.MappingNode) else items
    width = sum(lay_out(part) + 2 for part in parts)
    node.flow_style = width <= LINE
    return width


_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class Readable(_Dumper):
    """YAML without aliases, and with texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, value: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


Readable.add_representer(str, Readable.text)
