from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import pytest
import stack_files
from engine_servers import DEPLOYMENT, RecordingPlugin
from google.protobuf import json_format
from llmd_oke.operations.recovery import Pending, Recovery, State, recovered_state
from llmd_oke.program.access import ClusterIdentity
from llmd_oke.program.addresses import declare_front_door
from llmd_oke.program.models import declare_address
from pulumi.runtime.proto import provider_pb2
from pulumi_engine import KeptStack

pytestmark = pytest.mark.engine


class ReadingPlugin(RecordingPlugin):
    """A plug-in that has all that it is asked to read, and the ids of what it deleted."""

    def Read(self, request, context):  # noqa: N802
        return provider_pb2.ReadResponse(id=request.id, properties=request.properties, inputs=request.inputs)

    def Diff(self, request, context):  # noqa: N802
        answer = super().Diff(request, context)
        old, new = json_format.MessageToDict(request.old_inputs), json_format.MessageToDict(request.news)
        if old.get("metadata", {}).get("name") != new.get("metadata", {}).get("name"):
            answer.replaces.append("metadata.name")
        return answer

    def Delete(self, request, context):  # noqa: N802
        self.calls.append(("delete", request.id))
        return super().Delete(request, context)


def killed(deployment: State, marks: dict[str, Any]) -> tuple[State, Recovery]:
    """The state of an engine that was killed while it created the Deployment `new`, and what becomes of it."""
    old = next(each for each in deployment["resources"] if each["type"] == DEPLOYMENT)
    metadata = {**old["inputs"]["metadata"], "name": "new"}
    new = {**old, "inputs": {**old["inputs"], "metadata": metadata}}
    del new["id"]
    resources = [{**each, **(marks if each is old else {})} for each in deployment["resources"]]
    pending = Pending("creating", old["urn"], old["type"], new["inputs"])
    state = {**deployment, "resources": resources, "pending_operations": [{"resource": new, "type": "creating"}]}
    return state, Recovery(taken=((pending, "id-of-new"),))


@pytest.mark.parametrize(
    ("marks", "deleted"),
    [
        pytest.param({}, [("delete", "d"), ("delete", "d")], id="created first"),
        pytest.param({"pendingReplacement": True}, [], id="deleted first"),
    ],
)
def test_after_a_killed_replacement_an_update_deletes_only_the_replaced_object(
    stack_with: Callable[..., KeptStack], marks: dict[str, Any], deleted: list[tuple[str, str]]
) -> None:
    wanted = {"name": "old"}

    def program():
        cluster = k8s.Provider("cluster", cluster_identifier="test")
        options = pulumi.ResourceOptions(provider=cluster)
        k8s.core.v1.ConfigMap("first", metadata={"name": "first"}, opts=options)
        one = k8s.apps.v1.Deployment("d", metadata=wanted, opts=options)
        after = pulumi.ResourceOptions(provider=cluster, depends_on=[one])
        k8s.core.v1.ConfigMap("last", metadata={"name": "last"}, opts=after)

    plugin = ReadingPlugin()
    stack = stack_with(plugin, program)
    stack.up()
    exported = stack.export_stack()
    state, recovery = killed(exported.deployment or {}, marks)
    exported.deployment = recovered_state(state, recovery)
    stack.import_stack(exported)
    stack.refresh(target=recovery.urns)
    wanted["name"] = "new"
    plugin.calls.clear()
    stack.up()
    assert plugin.calls == deleted
    assert ids(stack.export_stack().deployment) == ["id-of-new"]


def ids(deployment: State | None) -> list[str]:
    """The ids of the Deployments of a state."""
    return [each["id"] for each in (deployment or {})["resources"] if each["type"] == DEPLOYMENT]


class ServicePlugin(RecordingPlugin):
    """A plug-in with the history of its Services."""

    remembered = "kubernetes:core/v1:Service"


def test_a_models_service_stays_the_same_when_routers_and_a_front_door_come_and_go(
    stack_with: Callable[..., KeptStack],
) -> None:
    """Another Service of that name can't be made beside it."""
    routed, shared = stack_files.plan(stack_files.model()), stack_files.plan(stack_files.model(), frontDoor={})
    plain = stack_files.plan(stack_files.model("agg-tp1-8r", router={"mode": "none"}))
    plans = [plain, routed, shared, routed, plain]

    def program() -> None:
        plan, access = plans.pop(0), ClusterIdentity("test")
        opts = access.options(access.provider("cluster"))
        door = plan.front_door and declare_front_door(plan, plan.front_door, access, pulumi.Config("llmd-oke"), [])
        declare_address(plan, plan.models[0], opts, [], door)

    plugin = ServicePlugin()
    stack = stack_with(plugin, program)
    while plans:
        stack.up()
    assert [step for step, name in plugin.calls if "gpt-oss-120b" in name] == ["create", *["update"] * 4]
