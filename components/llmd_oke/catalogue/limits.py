"""Limits of others: of services, for what a created cluster has one of, and of time, for jobs that update a stack."""

from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry


class ServiceLimit(Entry):
    """A limit of a service, by the names that it goes by, the likelier first."""

    service: str
    names: tuple[str, ...]


class Limits(Entry):
    """The limits of clusters and of networks."""

    cluster: ServiceLimit
    network: ServiceLimit


@cache
def limits() -> Limits:
    """The limits of clusters and of networks."""
    return required_entry("limits", "oci", Limits)


class PipelineLimits(Entry):
    """Minutes: of resources without a limit of their own, of what runs around the engine, and of GitHub's jobs, on
    hosted runners and on one's own.
    """

    kubernetes_minutes: int
    oci_minutes: int
    around_minutes: int
    hosted_job_minutes: int
    own_job_minutes: int


@cache
def pipeline_limits() -> PipelineLimits:
    """The limits of `values/limits/pipeline.yaml`."""
    return required_entry("limits", "pipeline", PipelineLimits)
