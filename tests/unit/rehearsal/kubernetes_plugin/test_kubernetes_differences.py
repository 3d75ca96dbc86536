from llmd_oke.rehearsal.kubernetes_plugin.differences import differences, replacing_fields, without_ignored
from llmd_oke.rehearsal.kubernetes_plugin.kinds import kind_of
from llmd_oke.rehearsal.plugin_protocol.changes import Change
from llmd_oke.rehearsal.plugin_protocol.trees import UNKNOWN


def found(old, new, *replaced_by):
    return {d.name: (d.change.name, d.replaces) for d in differences(old, new, replaced_by)}


def test_equal_objects_do_not_differ():
    assert found({"a": [1, {"b": 2.0}]}, {"a": [1.0, {"b": 2}]}) == {}


def test_a_new_map_is_one_difference_at_its_own_path():
    assert found({"metadata": {}}, {"metadata": {"labels": {"a": "1", "b": "2"}}}) == {
        "metadata.labels": ("ADD", False)
    }


def test_lists_are_compared_by_position():
    old = {"env": [{"name": "A"}, {"name": "B"}, {"name": "C"}]}
    new = {"env": [{"name": "B"}, {"name": "B", "value": "1"}]}

    assert found(old, new) == {
        "env[0].name": ("UPDATE", False),
        "env[1].value": ("ADD", False),
        "env[2]": ("DELETE", False),
    }


def test_names_with_dots_are_quoted():
    assert list(found({"annotations": {"a.b/c": "1"}}, {"annotations": {}})) == ['annotations["a.b/c"]']


def test_an_unknown_value_is_a_change():
    assert found({"a": 1}, {"a": UNKNOWN, "b": UNKNOWN}) == {"a": ("UPDATE", False), "b": ("ADD", False)}


def test_a_boolean_is_no_number():
    assert found({"a": 1}, {"a": True}) == {"a": ("UPDATE", False)}


def test_a_change_below_a_replacing_field_replaces():
    assert found({"data": {"k": "v"}}, {"data": {"k": "w"}}, "data") == {"data.k": ("UPDATE", True)}


def test_a_new_part_replaces_when_it_brings_a_replacing_field():
    pattern = "spec.containers[*].image"

    assert found({"spec": {"containers": []}}, {"spec": {"containers": [{"image": "i"}]}}, pattern) == {
        "spec.containers[0]": ("ADD", True)
    }
    assert found({"spec": {"containers": []}}, {"spec": {"containers": [{"name": "n"}]}}, pattern) == {
        "spec.containers[0]": ("ADD", False)
    }


def test_name_and_namespace_always_replace():
    assert found({"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}) == {"metadata.name": ("UPDATE", True)}


def test_ignored_paths_hide_what_lies_below_and_nothing_beside():
    changes = differences({"a": {"b": 1}, "ab": 1}, {"a": {"b": 2}, "ab": 2}, ())

    assert [d.name for d in without_ignored(changes, ["a"])] == ["ab"]
    assert [d.change for d in changes] == [Change.UPDATE, Change.UPDATE]


def test_a_provider_option_makes_data_mutable_but_not_of_immutable_objects():
    kind = kind_of("kubernetes:core/v1:ConfigMap")
    flags = frozenset({"enableConfigMapMutable"})

    assert "data" in replacing_fields(kind, {}, frozenset())
    assert "data" not in replacing_fields(kind, {}, flags)
    assert "data" in replacing_fields(kind, {"immutable": True}, flags)
