"""The data of IAM: policy statements and dynamic groups."""

import re
from string import Template
from typing import get_args

import pytest
from llmd_oke.catalogue.iam import Need, policies

STATEMENTS = [(need, statement) for need, entry in policies().needs.items() for statement in entry.statements]
SCOPES = {
    "compartment_id": "compartment",
    "network_compartment_id": "network",
    "image_compartment_id": "images",
    "key_compartment_id": "keys",
    None: "tenancy",
}
KNOWN = {"tenancy_id", "cluster_id", *SCOPES}
GRAMMAR = re.compile(
    r"^Allow (any-user|service [a-z]+|\$[a-z]+) to "
    r"((use|read|inspect|manage) [a-z-]+|\{[A-Z_]+(, [A-Z_]+)*\}) in (tenancy|compartment id \$[a-z_]+)"
    r"( where (ALL \{.+\}|[a-z.]+ = '[^']+'))?$"
)


def ids(value):
    return value if isinstance(value, str) else value.text[:60]


def test_every_need_has_statements():
    assert set(policies().needs) == set(get_args(Need))
    assert all(entry.statements and entry.why for entry in policies().needs.values())


@pytest.mark.parametrize(("need", "statement"), STATEMENTS, ids=ids)
def test_every_statement_has_ocis_grammar_and_a_source(need, statement):
    assert GRAMMAR.match(statement.text)
    assert statement.source


@pytest.mark.parametrize(("need", "statement"), STATEMENTS, ids=ids)
def test_every_variable_is_one_that_is_filled_in(need, statement):
    variables = set(Template(statement.text).get_identifiers())
    known = KNOWN | set(policies().groups) | set(policies().principals)
    assert variables <= known | ({statement.each} if statement.each else set())
    assert statement.each is None or statement.each in variables


@pytest.mark.parametrize(("need", "statement"), STATEMENTS, ids=ids)
def test_any_user_is_never_meant_without_a_condition_on_who_asks(need, statement):
    if statement.text.startswith("Allow any-user"):
        text = Template(statement.text).safe_substitute(policies().principals)
        assert "request.principal." in text.partition(" where ")[2]


@pytest.mark.parametrize(("need", "statement"), STATEMENTS, ids=ids)
def test_a_policy_is_attached_to_the_compartment_that_it_speaks_of(need, statement):
    place = re.search(r" in (tenancy|compartment id \$(\w+))", statement.text)
    assert SCOPES[place.group(2)] == statement.scope


@pytest.mark.parametrize(("need", "statement"), STATEMENTS, ids=ids)
def test_what_names_the_cluster_comes_after_it(need, statement):
    text = Template(statement.text).safe_substitute(policies().principals)
    if "$cluster_id" in text:
        assert policies().needs[need].phase == "nodes"


def test_nothing_is_granted_on_everything():
    assert [statement.text for _, statement in STATEMENTS if "all-resources" in statement.text] == []
    tenancy_wide = [statement.text for _, statement in STATEMENTS if statement.scope == "tenancy"]
    assert tenancy_wide == ["Allow service lustrefs to use virtual-network-family in tenancy"]
