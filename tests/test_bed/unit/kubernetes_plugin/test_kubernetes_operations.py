import pytest
from llmd_rehearsal.kubernetes_plugin.differences import differences, replacing_fields, without_ignored
from llmd_rehearsal.kubernetes_plugin.objects import kind_of
from llmd_rehearsal.kubernetes_plugin.operations import must_force, take_over_fields, without_foreign_fields
from llmd_rehearsal.plugin_values import UNKNOWN, PropertyChangeKind


def changes(old, new, *replaced_by):
    return {d.name: (d.change.name, d.replaces) for d in differences(old, new, replaced_by)}


ENV = {"env": [{"name": "A"}, {"name": "B"}, {"name": "C"}]}, {"env": [{"name": "B"}, {"name": "B", "value": "1"}]}
IN_ENV = {"env[0].name": ("UPDATE", False), "env[1].value": ("ADD", False), "env[2]": ("DELETE", False)}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param({"a": [1, {"b": 2.0}]}, {"a": [1.0, {"b": 2}]}, {}, id="equal objects"),
        pytest.param({"a": {}}, {"a": {"b": {"c": "1", "d": "2"}}}, {"a.b": ("ADD", False)}, id="one added map"),
        pytest.param(*ENV, IN_ENV, id="items of lists by position"),
        pytest.param({"a": {"a.b/c": "1"}}, {"a": {}}, {'a["a.b/c"]': ("DELETE", False)}, id="keys with dots"),
        pytest.param(
            {"a": 1}, {"a": UNKNOWN, "b": UNKNOWN}, {"a": ("UPDATE", False), "b": ("ADD", False)}, id="unknown values"
        ),
        pytest.param({"a": 1}, {"a": True}, {"a": ("UPDATE", False)}, id="a boolean is no number"),
    ],
)
def test_the_diff_of_kubernetes_objects_has_each_change_by_its_path(old, new, expected):
    assert changes(old, new) == expected


def test_a_change_inside_of_an_immutable_field_or_of_the_name_requires_a_replacement():
    assert changes({"data": {"k": "v"}}, {"data": {"k": "w"}}, "data") == {"data.k": ("UPDATE", True)}
    assert changes({"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}) == {"metadata.name": ("UPDATE", True)}


@pytest.mark.parametrize(("container", "replaces"), [({"image": "i"}, True), ({"name": "n"}, False)])
def test_adding_a_map_with_an_immutable_field_requires_a_replacement(container, replaces):
    old, new = {"spec": {"containers": []}}, {"spec": {"containers": [container]}}
    assert changes(old, new, "spec.containers[*].image") == {"spec.containers[0]": ("ADD", replaces)}


def test_an_ignored_path_hides_changes_of_its_nested_fields_but_of_no_other_field():
    changes = differences({"a": {"b": 1}, "ab": 1}, {"a": {"b": 2}, "ab": 2}, ())
    assert [d.name for d in without_ignored(changes, ["a"])] == ["ab"]
    assert [d.change for d in changes] == [PropertyChangeKind.UPDATE, PropertyChangeKind.UPDATE]


def test_a_provider_option_makes_configmap_data_mutable_except_in_immutable_objects():
    kind = kind_of("kubernetes:core/v1:ConfigMap")
    flags = frozenset({"enableConfigMapMutable"})
    assert "data" in replacing_fields(kind, {}, frozenset())
    assert "data" not in replacing_fields(kind, {}, flags)
    assert "data" in replacing_fields(kind, {"immutable": True}, flags)


def entry(manager, operation="Update", **fields):
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


def live(*entries, **fields):
    return {"metadata": {"managedFields": list(entries)}, **fields}


def test_the_first_update_takes_over_the_field_ownership_of_the_create():
    created = entry("pulumi-kubernetes", **{"f:data": {"f:k": {}}})
    other = entry("someone", **{"f:status": {}})
    assert take_over_fields(live(created, other), "m") == [other, entry("m", "Apply", **{"f:data": {"f:k": {}}})]


def test_fields_taken_over_from_kubectl_edit_are_merged_into_the_field_managers_own():
    own = entry("m", "Apply", **{"f:data": {"f:k": {}}})
    edited = entry("kubectl-edit", **{"f:data": {"f:l": {}}})
    assert take_over_fields(live(own, edited), "m") == [entry("m", "Apply", **{"f:data": {"f:k": {}, "f:l": {}}})]


def test_fields_of_other_managers_and_subresources_are_not_taken_over():
    scaled = {**entry("kubectl", **{"f:spec": {"f:replicas": {}}}), "subresource": "scale"}
    assert take_over_fields(live(scaled, entry("someone")), "m") is None


def test_a_preview_forces_conflicts_until_pulumi_has_taken_over_field_ownership():
    created = live(entry("pulumi-kubernetes"), entry("other"))
    assert must_force(created, preview=True)
    assert not must_force(created, preview=False)
    assert not must_force(live(entry("m", "Apply")), preview=True)


def test_an_ignored_field_stays_with_the_field_manager_that_owns_it():
    obj = {"spec": {"replicas": 1, "x": 1}}
    scaler = entry("hpa", **{"f:spec": {"f:replicas": {}}})
    own = entry("m", "Apply", **{"f:spec": {"f:replicas": {}}})
    assert without_foreign_fields(obj, live(scaler, spec={"replicas": 5}), "m", ["spec.replicas"]) == {"spec": {"x": 1}}
    assert without_foreign_fields(obj, live(own, spec={"replicas": 5}), "m", ["spec.replicas"])["spec"]["replicas"] == 5
