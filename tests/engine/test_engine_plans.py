from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pulumi
import pulumi_kubernetes as k8s
import pytest
from engine_servers import DEPLOYMENT, language_server
from listening import Listener
from llmd_oke import AggregatedUnit
from llmd_oke.cluster.gate import NodeGate
from llmd_oke.operations import updates
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli, run
from pulumi.runtime.proto import provider_pb2
from pulumi_engine import KeptStack
from stack_files import model, plan
from test_engine_gate import POOL, ReplacingPlugin
from test_engine_updates import unit

pytestmark = pytest.mark.engine


class DeploymentPlugin(ReplacingPlugin):
    """Previews change nothing and know no ids, as with the real plug-in."""

    remembered = DEPLOYMENT

    def Create(self, request, context):  # noqa: N802
        if request.preview:
            return provider_pb2.CreateResponse(properties=request.properties)
        return super().Create(request, context)

    fails = False

    def Update(self, request, context):  # noqa: N802
        if request.preview:
            return provider_pb2.UpdateResponse(properties=request.news)
        if self.fails:
            context.abort(grpc.StatusCode.UNKNOWN, "out of capacity")
        return super().Update(request, context)


class Stack:
    """A program whose servers a test chooses, and the kit's own way to update it with the real CLI."""

    def __init__(self, project: Path, plugin: DeploymentPlugin) -> None:
        self.servers: dict[str, Any] = {"replicas": 2, "size": 1}
        self.between: dict[str, Any] = {}
        self.with_gate = False
        self.image = ""
        self.said = ""
        self.plugin = plugin
        self._project = project

    def program(self) -> None:
        opts = pulumi.ResourceOptions(provider=k8s.Provider("cluster", cluster_identifier="test"))
        AggregatedUnit("m", unit(**self.servers), opts)
        if self.image:
            pulumi.Stash(self.image, input="ocid1.image")
        if self.with_gate:
            pool_id = k8s.core.v1.Namespace("pool", opts=opts).id
            NodeGate("gate", {**POOL, "pool_id": pool_id}, opts)  # type: ignore[typeddict-item]

    def update(self) -> tuple[int, list[str], list[str]]:
        """The CLI's exit code, what happened to the Deployment, and the news."""
        self.plugin.calls.clear()
        progress = Listener()
        cli = PulumiCli(self._project, "test", "pulumi", self._run)
        status = updates.update(cli, plan(model("agg-tp1-1r")), progress, lambda _: True, yes=True, allow_replace=False)
        return status, [step for step, _ in self.plugin.calls], progress.news

    def _run(self, argv: Sequence[str], _capture: bool) -> CommandResult:
        """Update with the program where the CLI would start one, while somebody changes it after the preview."""
        if not {"preview", "up"} & set(argv):
            return run(argv, True)
        if "up" in argv:
            self.servers.update(self.between)
        with language_server(self.program) as address:
            ended = run([*argv, "--client", address, "--exec-kind", "auto.inline"], True)
        self.said = ended.output + ended.errors
        return ended


@pytest.fixture
def stack(stack_with: Callable[..., KeptStack], tmp_path: Path) -> Stack:
    made = Stack(tmp_path / "work", DeploymentPlugin())
    stack_with(made.plugin, made.program)
    return made


def test_an_update_executes_exactly_the_previewed_plan_and_refuses_other_changes(stack: Stack):
    status, done, _ = stack.update()
    assert (status, done) == (0, ["create"]), stack.said
    stack.servers["replicas"] = 3
    status, done, news = stack.update()
    assert (status, done) == (0, ["update"]), stack.said
    assert not [text for text in news if "not bound" in text]
    stack.between = {"size": 2}
    status, done, _ = stack.update()
    assert status
    assert done == []
    assert "violates plan" in stack.said


def test_an_update_that_fails_before_a_planned_deletion_is_reported_as_one_failure(stack: Stack):
    stack.image = "image-v1.34.2"
    assert stack.update()[0] == 0, stack.said
    stack.image, stack.servers["replicas"], stack.plugin.fails = "image-v1.35.2", 3, True
    status, _, news = stack.update()
    assert status
    assert "image-v1.34.2 but none were seen" in stack.said
    assert [text for text in news if text.startswith("what failed")] == [
        "what failed: Deployment m-aggregated. Not begun for it, as `expected resource operations for ...` means, and"
        " left to the next update: Stash image-v1.34.2"
    ]
    stack.plugin.fails = False
    assert stack.update()[0] == 0, stack.said


def test_an_update_with_values_unknown_at_preview_is_not_bound_to_its_plan(stack: Stack):
    stack.with_gate = True
    status, done, news = stack.update()
    assert (status, done) == (0, ["create"]), stack.said
    assert [text for text in news if text.startswith("the update is not bound to this preview")]
