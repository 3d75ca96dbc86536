"""A kubeconfig in a stack file is one, and holds nothing that lets anybody in."""

import json
from typing import Any

import pytest
from created_cluster import LOOKUP_RESULTS, cluster_layer
from llmd_base.errors import Problem
from llmd_oke.config import validate
from llmd_oke.planning.checks import layer_problems
from llmd_oke.testing import KUBECONFIG

PLANTED = "planted-credential"


def problems(text: str) -> list[Problem]:
    results = {**LOOKUP_RESULTS, "kubeconfig": text}
    return list(
        layer_problems(
            validate(cluster_layer(cluster={"clusterId": "ocid1.cluster.oc1.iad.c", "lookupResults": results}))
        )
    )


def changed(**cluster: Any) -> str:
    document = json.loads(KUBECONFIG)
    document["clusters"][0]["cluster"].update(cluster)
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "",
        PLANTED,
        "[]",
        "{}",
        "clusters: []",
        "clusters: [{cluster: 1}]",
        "[" * 100_000,
        "a: &a [*a]",
        "? [a]\n: b",
        "when: 2026-13-45",
        changed(server="http://10.0.0.5:6443"),
        changed(server=7),
        changed(server="https://[::1"),
        changed(**{"certificate-authority-data": "no base64!"}),
        changed(**{"certificate-authority-data": [1]}),
        json.dumps({**json.loads(KUBECONFIG), "users": [{"user": PLANTED}]}),
    ],
)
def test_an_invalid_kubeconfig_is_refused_with_its_path_in_the_stack_config(text: str):
    (problem,) = problems(text)
    assert problem.path == "cluster.lookupResults.kubeconfig"
    assert PLANTED not in repr(problem)


@pytest.mark.parametrize("key", ["token", "password", "client-key-data", "auth-provider"])
def test_plain_text_credentials_in_a_kubeconfig_are_refused_and_not_shown(key: str):
    (problem,) = problems(json.dumps({**json.loads(KUBECONFIG), "users": [{"user": {key: PLANTED}}]}))
    assert key in str(problem.value)
    assert PLANTED not in repr(problem)


def test_a_kubeconfig_as_oke_generates_it_is_accepted():
    assert problems(KUBECONFIG) == []
