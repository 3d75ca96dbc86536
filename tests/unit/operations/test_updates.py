"""An update through the Pulumi CLI, which is a fake here: what it is asked, in which order."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.config import validate
from llmd_oke.errors import KitError
from llmd_oke.operations import updates
from llmd_oke.operations.pulumi_cli import Ended, PulumiCli
from llmd_oke.planning import plan
from previews_for_tests import DATA, document, replaced_pool, step, urn

POOL = replaced_pool()["urn"]
PROTECTED = document(errors=(f'unable to replace resource "{POOL}"\nas it is currently marked for protection',))
STACK = {
    "cluster": {"mode": "existing", "identifier": "here"},
    "gpuPools": [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 2}],
    "release": "llm-d-0.9.0",
    "models": [
        {
            "model": "gpt-oss-120b",
            "topology": "8p-tp1-2d-tp4",
            "workload": {"inputTokens": 4096, "outputTokens": 256},
        }
    ],
}


LOOK = "refresh --preview-only --json --non-interactive --target **kubernetes:**"
NOTHING_BY_HAND = Ended(0, "")


SCALED = urn("kubernetes:apps/v1:Deployment", "d")


class Told:
    """Keeps the news."""

    def __init__(self) -> None:
        self.news: list[str] = []

    def step(self, text: str) -> None:
        self.news.append(text)

    def detail(self, text: str) -> None:
        self.news.append(text)


class Cli:
    """Answers like the Pulumi CLI and remembers what it was asked."""

    def __init__(self, preview: str, resources: Sequence[dict[str, Any]] = (), seen: Ended = NOTHING_BY_HAND) -> None:
        self.asked: list[str] = []
        self.progress = Told()
        self._answers = {
            "preview": Ended(0, preview),
            LOOK: seen,
            "stack": Ended(0, json.dumps({"deployment": {"resources": list(resources)}})),
        }
        self.pulumi = PulumiCli(Path("/p"), "prod", "pulumi", self._run)

    def _run(self, argv: Sequence[str], capture: bool) -> Ended:
        own = argv[argv.index("pulumi") + 1 : argv.index("--stack")]
        words = " ".join(own)
        if words not in {LOOK, "stack export"}:  # they change nothing
            self.asked.append(words)
        return self._answers.get(words, self._answers.get(own[0], Ended(0))) if capture else Ended(0)

    def update(self, *, yes: bool = True, allow_replace: bool = False, agreed: bool = True) -> int:
        return updates.update(
            self.pulumi, plan(validate(STACK)), self.progress, lambda _: agreed, yes=yes, allow_replace=allow_replace
        )


def scaled_by_hand() -> Ended:
    """A Deployment that somebody scaled from 2 to 3, and a ConfigMap that is gone, as the engine's events tell it."""
    states = {"old": {"inputs": {"spec": {"replicas": 2}}}, "new": {"inputs": {"spec": {"replicas": 3}}}}
    scaled = {"op": "update", "urn": SCALED, **states, "detailedDiff": {"spec.replicas": {"diffKind": "update"}}}
    gone = {"op": "delete", "urn": urn("kubernetes:core/v1:ConfigMap", "config")}
    return Ended(0, "\n".join(json.dumps({"resOutputsEvent": {"metadata": each}}) for each in (scaled, gone)))


def test_what_was_changed_by_hand_is_told_read_and_taken_back():
    cli = Cli(document(), seen=scaled_by_hand())
    assert cli.update() == 0
    config = urn("kubernetes:core/v1:ConfigMap", "config")
    assert cli.asked == [
        f"refresh --yes --skip-preview --target {SCALED} --target {config}",
        "preview --json --show-sames --non-interactive",
        "up --yes --skip-preview",
    ]
    assert [news for news in cli.progress.news if "by hand:" in news] == [
        "changed by hand: Deployment d: spec.replicas was 2 and is 3; the update makes it what the stack file says",
        "changed by hand: ConfigMap config is gone; the update makes it anew",
    ]


def test_kubernetes_is_upgraded_one_resource_after_the_other():
    states = {"oldState": "v1.34.2", "newState": "v1.35.2"}
    inputs = {state: {"inputs": {"kubernetesVersion": version}} for state, version in states.items()}
    cli = Cli(document(step("update", "oci:ContainerEngine/nodePool:NodePool", "system-node-pool", **inputs)))
    assert cli.update() == 0
    assert cli.asked[-1] == "up --yes --skip-preview --parallel 1"
    assert cli.progress.news[-1] == "Kubernetes, one after the other: system-node-pool v1.34.2 -> v1.35.2"


def test_what_was_read_before_an_update_that_never_came_is_told_with_the_next():
    owner = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    read = {"spec": {"replicas": 3}}
    old = {"inputs": read, "outputs": {**read, "metadata": {"managedFields": [owner]}}}
    undone = {"op": "update", "urn": SCALED, "oldState": old, "newState": {"inputs": {"spec": {"replicas": 2}}}}
    cli = Cli(document({**undone, "detailedDiff": {"spec.replicas": {"kind": "update"}}}))
    assert cli.update() == 0
    assert cli.progress.news[-1] == (
        "changed by hand: Deployment d: spec.replicas is 3, set by kubectl; the update makes it 2"
    )


def test_an_update_goes_on_where_changes_by_hand_can_not_be_seen():
    cli = Cli(document(), seen=Ended(255, "", "the cluster does not answer"))
    assert cli.update() == 0
    assert "they can't be seen, and so are not taken back: the cluster does not answer" in cli.progress.news
    assert cli.asked == ["preview --json --show-sames --non-interactive", "up --yes --skip-preview"]


def test_what_others_change_is_read_before_it_is_previewed_and_updated():
    cli = Cli(document())
    cli.pulumi = replace(cli.pulumi, refresh=True)
    assert cli.update() == 0
    assert cli.asked == ["preview --json --show-sames --non-interactive --refresh", "up --yes --skip-preview --refresh"]


def test_an_update_is_previewed_and_then_made():
    cli = Cli(document())
    assert cli.update() == 0
    assert cli.asked == ["preview --json --show-sames --non-interactive", "up --yes --skip-preview"]


def test_without_yes_the_cli_asks_for_itself():
    cli = Cli(document())
    cli.update(yes=False)
    assert cli.asked[-1] == "up"


def test_a_refused_preview_updates_nothing():
    cli = Cli(document(replaced_pool()))
    with pytest.raises(KitError, match="prod-mi300x"):
        cli.update()
    assert cli.asked == ["preview --json --show-sames --non-interactive"]


def test_a_preview_that_failed_updates_nothing_and_says_why():
    cli = Cli(document(errors=("the bucket is gone",)))
    with pytest.raises(KitError, match="the bucket is gone"):
        cli.update(allow_replace=True)
    assert not [asked for asked in cli.asked if asked.startswith(("up", "state"))]


def test_what_may_be_replaced_loses_its_protection_and_nothing_else_does():
    other = step("same", "oci:ContainerEngine/cluster:Cluster", "prod")["urn"]
    cli = Cli(PROTECTED, [{"urn": POOL, "protect": True}, {"urn": other, "protect": True}])
    assert cli.update(allow_replace=True) == 0
    assert [asked for asked in cli.asked if asked.startswith("state")] == [f"state unprotect {POOL} --yes"]
    assert cli.asked[-1].startswith("up")


def test_protection_alone_is_refused_without_the_option():
    cli = Cli(PROTECTED, [{"urn": POOL, "protect": True}])
    with pytest.raises(KitError, match="marked for protection"):
        cli.update()


def test_on_full_nodes_old_servers_are_destroyed_before_the_update():
    cli = Cli((DATA / "preview-switch.json").read_text())
    assert cli.update() == 0
    _, early, last = cli.asked
    assert early.startswith("destroy --yes --target urn:pulumi:test::llmd-oke::llmd-oke:index:AggregatedUnit$")
    assert early.endswith("::m-aggregated --target-dependents")
    assert last.startswith("up")


def test_nothing_is_destroyed_early_where_the_user_says_no():
    cli = Cli((DATA / "preview-switch.json").read_text())
    assert cli.update(yes=False, agreed=False) == 1
    assert cli.asked == ["preview --json --show-sames --non-interactive"]


def test_protected_resources_are_not_destroyed():
    cli = Cli(document(), [{"urn": POOL, "protect": True}])
    with pytest.raises(KitError, match="prod-mi300x") as refused:
        updates.destroy(cli.pulumi, cli.progress, yes=True, unprotect=False)
    assert "--unprotect" in (refused.value.remedy or "")
    assert cli.asked == []


def test_unprotected_on_request_they_are():
    cli = Cli(document(), [{"urn": POOL, "protect": True}])
    assert updates.destroy(cli.pulumi, cli.progress, yes=True, unprotect=True) == 0
    assert cli.asked == [f"state unprotect {POOL} --yes", "destroy --yes"]


def launched(index: int, *, current: bool, interrupted: bool = False) -> list[dict[str, Any]]:
    """An instance in a stack's state, and what it is launched with; `interrupted` before the instance went."""
    instance, stash = "oci:Core/instance:Instance", "pulumi:index:Stash"
    has = {"metadata": "new" if current and not interrupted else "old"}
    kept = {"inputs": {"input": {"metadata": "new"}}, "outputs": {"output": {"metadata": "new" if current else "old"}}}
    return [
        {"type": instance, "urn": urn(instance, f"mi300x-instance-{index}"), "protect": True, "inputs": has},
        {"type": stash, "urn": urn(stash, f"mi300x-instance-{index}-launch"), **kept},
    ]


def replaced(cli: Cli, *names: str, at_once: int = 1) -> int:
    return updates.replace_nodes(cli.pulumi, cli.progress, lambda _: True, names, at_once=at_once, yes=True)


def anew(*indices: int) -> list[str]:
    """What the CLI is asked for nodes that are launched anew together."""
    instances = [urn("oci:Core/instance:Instance", f"mi300x-instance-{index}") for index in indices]
    stashes = [urn("pulumi:index:Stash", f"mi300x-instance-{index}-launch") for index in indices]
    chosen = [f"--replace {each}" for both in zip(stashes, instances, strict=True) for each in both]
    return [*(f"state unprotect {each} --yes" for each in instances), f"up --yes --skip-preview {' '.join(chosen)}"]


NODES = [*launched(10, current=False), *launched(2, current=False), *launched(0, current=True)]


def changing(cli: Cli) -> list[str]:
    return [asked for asked in cli.asked if asked.startswith(("up", "state"))]


def test_nodes_that_were_launched_otherwise_are_launched_anew_one_after_the_other():
    cli = Cli(document(), NODES)
    assert replaced(cli) == 0
    assert changing(cli) == [*anew(2), *anew(10)]


def test_nodes_are_launched_anew_by_name_and_several_at_a_time():
    cli = Cli(document(), NODES)
    assert replaced(cli, "mi300x-0", "mi300x-2", "mi300x-10", at_once=2) == 0
    assert changing(cli) == [*anew(0, 2), *anew(10)]


def test_nodes_are_not_launched_anew_beside_other_changes():
    cli = Cli(document(step("update", "kubernetes:apps/v1:Deployment", "d")), NODES)
    with pytest.raises(KitError, match="not as its file says: Deployment d"):
        replaced(cli)
    assert changing(cli) == []


def test_a_node_that_the_stack_does_not_launch_is_named_with_those_that_it_does():
    with pytest.raises(KitError, match="no node mi300x-7") as refused:
        replaced(Cli(document(), NODES), "mi300x-7")
    assert "mi300x-0, mi300x-2, mi300x-10" in (refused.value.remedy or "")


def test_a_node_whose_replacement_was_interrupted_is_launched_anew_by_the_next_run():
    instance = "oci:Core/instance:Instance"
    begun = (
        step("replace", instance, "mi300x-instance-1"),
        step("replace", "kubernetes:batch/v1:Job", "mi300x-gate-job"),
    )
    cli = Cli(document(*begun), [*launched(0, current=True), *launched(1, current=True, interrupted=True)])
    assert replaced(cli) == 0
    assert changing(cli) == anew(1)
