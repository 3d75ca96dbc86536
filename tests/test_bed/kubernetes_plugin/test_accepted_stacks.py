"""Stack files that are other than anybody meant them to be, and are accepted all the same: the real API server takes
each object that they declare, by its dry-run, with every field known to it."""

import copy
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from itertools import islice
from operator import getitem
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from kubernetes_api import ApiServer, need_definitions
from kubernetes_control_plane import ControlPlane
from llmd_base.errors import KitError
from llmd_oke import catalogue
from llmd_oke.catalogue.releases import crd_manifests
from llmd_oke.catalogue.serving import gateway_provider_names
from llmd_oke.config import StackConfig, load, stacks, validate
from llmd_oke.planning import plan
from llmd_oke.testing import render
from llmd_rehearsal.cluster_plan import okes_definition
from llmd_rehearsal.front_door import gateway_parts
from llmd_rehearsal.programs import module_folder
from mutations import places
from stack_files import cluster_layer, created_pool, model, read, stack

pytestmark = pytest.mark.rehearsal

ROOT = Path(__file__).resolve().parents[3]
FIXED = 1
SEED = int(os.environ.get("LLMD_OKE_SEED", str(FIXED)))
"""Another one looks at other stacks."""
BY_DAY, BY_NIGHT, TRIED = 8, 60, 3000
"""Where the accepted stacks that are looked at end, and how many are tried for it."""
STACKS = [read(name) for name in stacks(ROOT)]
FRAGMENTS: list[Any] = [
    {"namespace": "x" * 63},
    {"smoke": {"enabled": False}},
    {"storage": {"modelCache": {"kind": "node-disk"}, "prewarm": {"source": "object-storage"}}},
    {
        "storage": {
            "modelCache": {
                "kind": "file-storage",
                "existing": {"fileSystemId": "ocid1.f", "mountTargetIp": "10.0.0.9", "exportPath": "/models"},
            }
        }
    },
    {
        "storage": {
            "modelCache": {"kind": "lustre", "existing": {"managementIp": "10.0.0.9", "fileSystemName": "models"}}
        }
    },
    {
        "models": [
            {
                "name": "n" * 40,
                "engine": {"env": {"A": "\u00e9\n\t: {}"}, "extraArgs": ["--seed=1"]},
                "router": {"mode": "none"},
            }
        ]
    },
]
"""What the kit's own stacks don't have."""
TEXTS = ("a", "a-b", "a.b", "A", "1a", "a-", "x" * 63, "x" * 64, "a/b", "é", "true", "1", "1Gi", "none", "m" * 30)
"""Values that some field takes, or nearly."""
UNSERVED = {
    "amd.com/v1alpha1",
    "k8s.cni.cncf.io/v1",
    "keda.sh/v1alpha1",
    "monitoring.coreos.com/v1",
    "nv-ipam.nvidia.com/v1alpha1",
    "sriovnetwork.openshift.io/v1",
}
"""What operators define, which aren't here."""


def varied(chance: Random) -> Any:
    """One of the kit's stacks with one to three parts as in another one, near to what they were, or gone."""
    document = copy.deepcopy(chance.choice(STACKS))
    for _ in range(chance.randint(1, 3)):
        what = chance.choice(("other", "near", "gone"))
        source = chance.choice((*STACKS, *FRAGMENTS)) if what == "other" else document
        *above, last = chance.choice(list(places(source))[1:])
        try:
            around, value = reduce(getitem, above, document), reduce(getitem, [*above, last], source)
            if what == "gone":
                del around[last]
            else:
                around[last] = copy.deepcopy(value) if what == "other" else near(chance, value)
        except (LookupError, TypeError):
            continue
    return document


def near(chance: Random, value: Any) -> Any:
    """A value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return chance.choice((value + 1, value * 2, value * 1000, max(1, value - 1), 1))
    return chance.choice(TEXTS) if isinstance(value, str) else value


def digest(config: StackConfig) -> str:
    return json.dumps(config.model_dump(mode="json"), sort_keys=True, default=str)


def accepted_stacks(project: Path) -> Iterator[StackConfig]:
    """The accepted ones of a fixed sequence."""
    (project / "stacks").mkdir()
    (project / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    known = {digest(load(ROOT, name)) for name in stacks(ROOT)}
    chance = Random(SEED)  # noqa: S311 - no secret
    for _ in range(TRIED):
        document = {"config": {"llmd-oke:stack": varied(chance)}}
        (project / "stacks/Pulumi.dev.yaml").write_text(yaml.safe_dump(document))
        with suppress(KitError):
            config = load(project, "dev")
            plan(config)
            if digest(config) not in known:
                known.add(digest(config))
                yield config


@pytest.fixture(scope="module")
def api_server(control_plane: ControlPlane) -> Iterator[ApiServer]:
    with control_plane.client() as client:
        server = ApiServer(client)
        releases = [release for name in catalogue.release_names() if (release := catalogue.release(name))]
        of_releases = (definition for release in releases for definition in crd_manifests(release.crds))
        newest = {definition["metadata"]["name"]: definition for definition in of_releases}
        for definition in (*newest.values(), okes_definition()):
            server.define(definition)
        yield server


@pytest.mark.parametrize(("first", "end"), [(0, BY_DAY), pytest.param(BY_DAY, BY_NIGHT, marks=pytest.mark.nightly)])
def test_the_api_server_accepts_all_objects_of_mutated_stacks_that_planning_accepts(
    tmp_path: Path, api_server: ApiServer, first: int, end: int
):
    for name in catalogue.release_names():
        need_definitions(name)
    seen: set[str] = set()
    kinds: Counter[str] = Counter()
    count, refused = 0, list[str]()
    for config in islice(accepted_stacks(tmp_path), first, end):
        count += 1
        for manifest in render(config).manifests():
            text = json.dumps(manifest, sort_keys=True)
            if text in seen or manifest["apiVersion"] in UNSERVED or manifest["kind"] == "CustomResourceDefinition":
                continue
            seen.add(text)
            kinds[manifest["kind"]] += 1
            if why := api_server.refusal(manifest):
                refused.append(f"{manifest['kind']} {manifest['metadata']['name']}: {why}")
    assert refused == []
    assert count == end - first
    assert (
        SEED != FIXED
        or {"Deployment", "Job", "InferencePool", "NetworkPolicy", "ConfigMap", "PersistentVolume"} <= kinds.keys()
    )


@pytest.fixture(scope="module")
def server_with_gateways(api_server: ApiServer) -> ApiServer:
    for definitions in gateway_parts().definitions:
        module_folder(definitions.module, definitions.version)
        for definition in crd_manifests(definitions):
            api_server.define(definition)
    return api_server


@pytest.mark.parametrize("provider", gateway_provider_names())
def test_the_api_server_accepts_gateways_and_routes_for_every_provider(provider: str, server_with_gateways: ApiServer):
    created = {"mode": "create", "provider": provider, "uncheckedRequests": "accepted"}
    gateway = {**created, "host": "llm.example.com", "tls": "certificate"}
    route = {"hosts": ["gpt.example.com"], "headers": {"X-Team": "a"}, "timeoutS": 0}
    behind = model("2p-tp1-2d-tp1", copies=2, router={"mode": "gateway", "route": route})
    manifests = render(validate(stack(behind, gateway=gateway))).manifests()
    kinds = {manifest["kind"] for manifest in manifests}
    assert {"Gateway", "HTTPRoute", "InferencePool"} <= kinds
    undefined = {"agentgateway.dev/v1alpha1", "networking.istio.io/v1", "networking.istio.io/v1alpha3"}
    known = [m for m in manifests if m["apiVersion"] not in undefined and m["kind"] != "CustomResourceDefinition"]
    assert [why for manifest in known if (why := server_with_gateways.refusal(manifest))] == []


def test_the_api_server_accepts_valid_noderepair_rules_and_refuses_a_wrong_one(api_server: ApiServer):
    config = cluster_layer(created_pool(), cluster={"nodeRepair": "on-request"})
    rules = [item for item in render(validate(config)).manifests() if item["kind"] == "NodeOperationRule"]
    assert len(rules) == 2
    assert [why for rule in rules if (why := api_server.refusal(rule))] == []
    wrong = copy.deepcopy(rules[0])
    wrong["spec"]["nodeSelector"]["matchTriggerLabel"] = {"repair": "reboot"}
    assert "node_operation" in (api_server.refusal(wrong) or "")


def test_the_api_server_refuses_a_configmap_with_a_misspelt_field_and_names_it(api_server: ApiServer):
    job = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}, "dtaa": {}}
    assert "dtaa" in (api_server.refusal(job) or "")
