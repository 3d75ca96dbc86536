"""`llmd_oke.testing` itself."""

import threading

import pulumi
import pulumi_kubernetes as k8s
import pytest
from llmd_base.errors import InvalidStack, KitError
from llmd_oke.testing import declared, render


def config_map(name, **options):
    metadata = {"name": name, "namespace": "n"}
    return k8s.core.v1.ConfigMap(name, metadata=metadata, data={"a": "1"}, opts=pulumi.ResourceOptions(**options))


def test_the_pulumi_mocks_record_resource_options():
    def program():
        first = config_map("first")
        limits = pulumi.CustomTimeouts(create="5s")
        config_map("second", depends_on=[first], custom_timeouts=limits, retain_on_delete=True)

    matches = declared(program)
    second = matches.kubernetes_resource("ConfigMap", "second")
    assert second.depends_on == (matches.kubernetes_resource("ConfigMap", "first").urn,)
    assert second.timeouts == {"create": "5s"}
    assert second.retain_on_delete
    assert not second.delete_before_replace


def test_the_pulumi_mocks_resolve_outputs_and_mark_secrets():
    def program():
        token = pulumi.Output.secret("t")
        secret = k8s.core.v1.Secret("s", metadata={"name": "s"}, string_data={"token": token})
        pulumi.export("name", secret.metadata.apply(lambda m: m.name))

    matches = declared(program)
    assert matches.outputs == {"name": "s"}
    resource = matches.kubernetes_resource("Secret", "s")
    assert resource.inputs["stringData"] == {"token": "t"}
    assert resource.secret_inputs == {"stringData"}


def test_the_pulumi_mocks_return_whole_numbers_as_integers():
    def program():
        k8s.apps.v1.Deployment("d", metadata={"name": "d"}, spec={"replicas": 3})

    assert repr(declared(program).kubernetes("Deployment", "d")["spec"]["replicas"]) == "3"


async def test_each_use_of_the_pulumi_mocks_starts_empty_even_in_a_running_event_loop():
    for name in ("a", "b"):
        assert [resource.name for resource in declared(lambda name=name: config_map(name)).resources] == [name]


def test_an_error_of_a_program_or_inside_an_output_reaches_the_caller_of_the_mocks():
    def failing():
        raise KitError("as it is")

    with pytest.raises(KitError, match="as it is"):
        declared(failing)
    with pytest.raises(ZeroDivisionError):
        declared(lambda: config_map("a").metadata.apply(lambda _: 1 // 0))


def test_the_pulumi_mocks_wait_only_a_limited_time_for_a_program_to_end():
    never = threading.Event()
    before = set(threading.enumerate())
    with pytest.raises(KitError, match=r"does not end within 0\.2 s"):
        declared(never.wait, limit_s=0.2)
    left = set(threading.enumerate()) - before
    never.set()
    assert [thread.name for thread in left if not thread.daemon] == [], "the process would wait for them"


def test_the_pulumi_mocks_run_a_program_as_in_an_update():
    previews: list[bool] = []
    declared(lambda: previews.append(pulumi.runtime.is_dry_run()))
    assert previews == [False]


def test_the_pulumi_mocks_answer_an_unknown_name_with_the_declared_names():
    matches = declared(lambda: config_map("a"))
    with pytest.raises(LookupError, match=r"\['a'\]"):
        matches.kubernetes("ConfigMap", "b")
    with pytest.raises(LookupError, match=r"\['a'\]"):
        matches.resource("kubernetes:core/v1:ConfigMap", "b")


def test_rendering_an_invalid_or_a_missing_stack_in_tests_raises_its_problems(tmp_path):
    with pytest.raises(InvalidStack) as error:
        render({"cluster": {"mode": "existing", "identifier": "x"}})
    assert {problem.path for problem in error.value.problems} >= {"gpuPools", "release"}
    (tmp_path / "Pulumi.yaml").touch()
    with pytest.raises(KitError, match="no stack file"):
        render("nothing", project=tmp_path)
