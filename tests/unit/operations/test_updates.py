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
from llmd_oke.progress import SilentProgress
from previews_for_tests import DATA, document, replaced_pool, step

POOL = replaced_pool()["urn"]
PROTECTED = document(errors=(f'unable to replace resource "{POOL}"\nas it is currently marked for protection',))
STACK = {
    "cluster": {"mode": "existing", "identifier": "here"},
    "gpuPools": [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 2}],
    "release": "llm-d-0.7.0",
    "models": [
        {
            "model": "gpt-oss-120b",
            "topology": "8p-tp1-2d-tp4",
            "workload": {"inputTokens": 4096, "outputTokens": 256},
        }
    ],
}


class Cli:
    """Answers like the Pulumi CLI and remembers what it was asked."""

    def __init__(self, preview: str, resources: Sequence[dict[str, Any]] = ()) -> None:
        self.asked: list[str] = []
        self._answers = {
            "preview": Ended(0, preview),
            "stack": Ended(0, json.dumps({"deployment": {"resources": list(resources)}})),
        }
        self.pulumi = PulumiCli(Path("/p"), "prod", "pulumi", self._run)

    def _run(self, argv: Sequence[str], capture: bool) -> Ended:
        own = argv[1 : argv.index("--stack")]
        self.asked.append(" ".join(own))
        return self._answers.get(own[0], Ended(0)) if capture else Ended(0)

    def update(self, *, yes: bool = True, allow_replace: bool = False, agreed: bool = True) -> int:
        return updates.update(
            self.pulumi, plan(validate(STACK)), SilentProgress(), lambda _: agreed, yes=yes, allow_replace=allow_replace
        )


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
        updates.destroy(cli.pulumi, SilentProgress(), yes=True, unprotect=False)
    assert "--unprotect" in (refused.value.remedy or "")
    assert cli.asked == ["stack export"]


def test_unprotected_on_request_they_are():
    cli = Cli(document(), [{"urn": POOL, "protect": True}])
    assert updates.destroy(cli.pulumi, SilentProgress(), yes=True, unprotect=True) == 0
    assert cli.asked == ["stack export", f"state unprotect {POOL} --yes", "destroy --yes"]
