from collections.abc import Mapping
from typing import Any

import pytest
from llmd_oke.catalogue.operations import pipeline_limits
from llmd_oke.cli.main import app
from llmd_oke.pipelines.time_limit import time_limit_of
from llmd_oke.testing import Declared
from render_support import PROJECT
from typer.testing import CliRunner

KNOWN = pipeline_limits()


def resource(
    name: str,
    limits: Mapping[str, str] | None = None,
    *after: str,
    type_: str = "oci:Core/instance:Instance",
    **more: Any,
) -> Declared:
    return Declared(type_, name, name, more.pop("inputs", {}), depends_on=after, timeouts=limits or {}, **more)


def minutes(*resources: Declared) -> int:
    """The limit without what runs around the engine."""
    return time_limit_of(resources, KNOWN, around=0).minutes


def test_an_updates_time_limit_adds_up_dependent_resources_and_not_parallel_ones():
    first, second = resource("a", {"create": "10m", "update": "1h30m"}), resource("b", {"create": "90s"}, "a")
    assert minutes(first) == 90
    assert minutes(first, resource("c", {"create": "30m", "update": "60m"})) == 90
    assert minutes(first, second) == 110
    assert [name for name, _ in time_limit_of([second, first], KNOWN, 0).path] == ["Instance a", "Instance b"]


def test_delete_before_replace_adds_the_delete_timeout_to_an_updates_time_limit():
    limits = {"create": "120m", "update": "130m", "delete": "60m"}
    assert minutes(resource("pool", limits)) == 130
    assert minutes(resource("pool", limits, delete_before_replace=True)) == 180


def test_in_an_updates_time_limit_unset_timeouts_are_the_plug_ins_defaults():
    assert minutes(resource("network")) == KNOWN.oci_minutes
    assert minutes(resource("object", type_="kubernetes:core/v1:ConfigMap")) == KNOWN.kubernetes_minutes
    assert minutes(resource("component", type_="llmd-oke:index:GpuPool")) == 0


def test_an_updates_time_limit_adds_an_objects_timeout_to_that_of_its_cluster():
    cluster = resource("cluster", {"create": "60m"})
    provider = resource("provider", None, "cluster", type_="pulumi:providers:kubernetes")
    assert (
        minutes(cluster, provider, resource("o", type_="kubernetes:core/v1:ConfigMap", provider="provider::id")) == 70
    )


def test_a_kubernetes_upgrades_time_limit_is_the_sum_over_its_pools():
    version = {"kubernetesVersion": "v1.34.2"}
    pools = [resource(name, {"create": "60m", "update": "60m"}, inputs=version) for name in ("system", "mi300x")]
    assert minutes(*pools) == 120


def limit(*words: str) -> tuple[int, str]:
    """Return what `pipeline limit` prints, and what it says."""
    ended = CliRunner().invoke(app, ["pipeline", "limit", "--project", str(PROJECT), *words])
    assert ended.exit_code == 0, ended.exception
    return int(ended.stdout), ended.stderr


@pytest.mark.parametrize(("words", "most"), [([], KNOWN.hosted_job_minutes), (["--own-runner"], KNOWN.own_job_minutes)])
def test_a_pipeline_jobs_timeout_is_that_of_the_update_up_to_githubs_maximum(words: list[str], most: int):
    granted, said = limit("--stack", "reference", *words)
    own = int(said.split("An update of reference may take ")[1].split()[0])
    assert granted == min(own, most)
    assert ("GitHub ends the job after 360" in said) == (own > most)
    assert all(f"  {waited}" in said for waited in ("Cluster oke-cluster", "NodePool mi300x-node-pool"))
