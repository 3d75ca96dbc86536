"""Names that running deployments know their resources by: to the engine, another name is another resource.

`names/<stack>.yaml` has what the stack registers: by the types of parents and resource, the names; by Deployment, the
labels for which servers are replaced.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from created_cluster import network_layer
from llmd_oke.testing import Rendered
from render_support import by_urn, recorded
from stack_files import created_pool

NAMES = Path(__file__).parent / "names"
RECORD = "LLMD_OKE_RECORD_NAMES"
REMEDY = f"""
Keep the names. Where one has to change, give the resource an alias of the old one (`pulumi.Alias`), so that the engine
takes over what runs. If running deployments are meant to change, or resources are new: say in CHANGELOG.md what an
update does to a running deployment, and record the names anew with {RECORD}=1."""

POOL = created_pool()
OPTIONS = network_layer(
    cluster={
        "apiEndpoint": {"access": "public", "allowedCidrs": ["203.0.113.0/24"]},
        "addOns": [{"name": "NodeProblemDetector"}],
    },
    cpuPools=[{"name": "routers", "shape": "VM.Standard.E5.Flex"}],
    gpuPools=[
        {**POOL, "name": "scaled", "scaling": {"mode": "cluster-autoscaler", "minSize": 2, "maxSize": 9}},
        {**POOL, "name": "network", "launch": "cluster-network"},
        {**POOL, "name": "instances", "launch": "compute-cluster-instances"},
    ],
    storage={"modelCache": {"kind": "file-storage"}},
    budget={"monthlyAmount": 400_000, "recipients": ["ops@example.com"]},
    ociMonitoring={"alarms": {"recipients": ["ops@example.com"]}, "logs": {"pods": True}},
)
"""What a cluster may have beside the reference's."""

STACKS: dict[str, Any] = {"guide": "guide", "reference": "reference", "options": OPTIONS}

Urn = tuple[str, str]
"""The types of a resource's parents and its own, joined by `$`; its name."""


@dataclass(frozen=True)
class Names:
    """Names that a stack registers: its resources, and the labels of Deployments whose change replaces them."""

    urns: frozenset[Urn]
    labels: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, rendered: Rendered) -> "Names":
        """Return the names of a rendered stack; digests of pods' programs, of which each is meant to be another
        resource, are left out.
        """
        labels: dict[str, dict[str, str]] = {}
        for (_, name), resource in by_urn(rendered).items():
            if keys := re.findall(r'metadata\.labels\["(.+?)"\]', " ".join(resource.replace_on_changes)):
                own = resource.inputs["metadata"]["labels"]
                labels[name] = {key: own[key] for key in keys if key in own}
        urns = ((types, re.sub(r"-[0-9a-f]{10}$", "-DIGEST", name)) for types, name in by_urn(rendered))
        return cls(frozenset(urns), labels)

    @classmethod
    def read(cls, text: str) -> "Names":
        """Read the names of a file."""
        document = yaml.safe_load(text)
        return cls(
            frozenset((types, name) for types, names in document["urns"].items() for name in names), document["labels"]
        )

    def text(self) -> str:
        """The file."""
        urns: dict[str, list[str]] = {}
        for types, name in sorted(self.urns):
            urns.setdefault(types, []).append(name)
        return yaml.safe_dump({"urns": urns, "labels": self.labels}, sort_keys=False)


@pytest.mark.parametrize("stack", STACKS)
def test_pulumi_resource_names_of_the_tested_stacks_equal_the_recorded_ones(
    rendered: Callable[..., Rendered], stack: str
):
    names = Names.of(rendered(STACKS[stack]))
    earlier = Names.read(recorded(NAMES / f"{stack}.yaml", names.text(), RECORD))
    assert names == earlier, "\n".join([f"Stack {stack}:", *consequences(earlier, names), REMEDY])


def consequences(earlier: Names, names: Names) -> Iterator[str]:
    """Return what changed, and what that does to a running deployment, one line for each."""
    gone, new = sorted(earlier.urns - names.urns), sorted(names.urns - earlier.urns)
    for types, name in gone:
        own = types.rsplit("$", 1)[-1]
        if heir := successor((types, name), new):
            new.remove(heir)
            now = f"named {heir[1]!r}" if heir[0] == types else f"under {parents(heir[0])} instead of {parents(types)}"
            yield f"{own} {name!r} is now {now}: an update replaces it in a running deployment."
        else:
            yield f"{own} {name!r} is registered no more: an update deletes it."
    for types, name in new:
        yield f"{types.rsplit('$', 1)[-1]} {name!r} is new: an update creates it."
    for name in earlier.labels.keys() & names.labels.keys():
        for label, value in names.labels[name].items():
            if (before := earlier.labels[name].get(label)) != value:
                yield f"Label {label} of {name!r} was {before!r} and is {value!r}: an update replaces its servers."


def successor(urn: Urn, new: Sequence[Urn]) -> Urn | None:
    """The new resource of the same type that takes another's place: with its name elsewhere, or beside with another."""
    types, name = urn
    moved = [other for other in new if other[1] == name and other[0].rsplit("$", 1)[-1] == types.rsplit("$", 1)[-1]]
    return next(iter([*moved, *(other for other in new if other[0] == types)]), None)


def parents(types: str) -> str:
    """The types of the parents, as a message says them."""
    return types.rpartition("$")[0] or "nothing"


VCN = "oci:Core/vcn:Vcn"
SERVERS = {"gpt-prefill": {"llmd-oke/version": "9a8f352e"}}


@pytest.mark.parametrize(
    ("urns", "labels", "message"),
    [
        ({(f"N${VCN}", "net-vcn")}, SERVERS, None),
        (
            {(f"N${VCN}", "network")},
            SERVERS,
            f"{VCN} 'net-vcn' is now named 'network': an update replaces it in a running deployment.",
        ),
        (
            {(f"M$N${VCN}", "net-vcn")},
            SERVERS,
            f"{VCN} 'net-vcn' is now under M$N instead of N: an update replaces it in a running deployment.",
        ),
        (set[Urn](), SERVERS, f"{VCN} 'net-vcn' is registered no more: an update deletes it."),
        (
            {(f"N${VCN}", "net-vcn"), ("Stash", "s")},
            SERVERS,
            "Stash 's' is new: an update creates it.",
        ),
        (
            {(f"N${VCN}", "net-vcn")},
            {"gpt-prefill": {"llmd-oke/version": "0"}},
            "Label llmd-oke/version of 'gpt-prefill' was '9a8f352e' and is '0': an update replaces its servers.",
        ),
    ],
    ids=["same", "renamed", "moved", "gone", "new", "version"],
)
def test_the_error_for_a_changed_resource_name_says_what_an_update_would_do(
    urns: set[Urn], labels: Any, message: str | None
):
    earlier = Names(frozenset({(f"N${VCN}", "net-vcn")}), SERVERS)
    assert list(consequences(earlier, Names(frozenset(urns), labels))) == ([message] if message else [])
