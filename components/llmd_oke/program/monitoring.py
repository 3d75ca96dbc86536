"""Monitoring of a plan: Prometheus where the stack installs it, and what it watches of the models."""

from dataclasses import replace

import pulumi

from llmd_oke.catalogue.monitoring import monitoring
from llmd_oke.objects import after
from llmd_oke.operators.prometheus_stack import PrometheusStack
from llmd_oke.planning import Plan
from llmd_oke.program.access import ClusterAccess
from llmd_oke.program.models import unit_name
from llmd_oke.serving.monitoring import ModelMonitoring


def declare_prometheus(plan: Plan, access: ClusterAccess) -> ClusterAccess:
    """Prometheus, where the stack installs it; models come after it, so that their monitors find their definitions."""
    if plan.monitoring is None or not plan.monitoring.install:
        return access
    opts = after(access.options(access.provider("monitoring")), *access.ready)
    return replace(access, ready=(*access.ready, PrometheusStack("prometheus", {}, opts)))


def declare_monitoring(
    plan: Plan, access: ClusterAccess, namespace: pulumi.Resource, opts: pulumi.ResourceOptions
) -> None:
    """What is watched of the models, once the cluster serves the Prometheus operator's definitions.

    Raises:
        KitError: (in the output) they aren't there in time; says what makes them.
    """
    watched = plan.monitoring
    if watched is None:
        return
    facts = monitoring()
    routers = [unit_name(plan, model, unit) for model in plan.models if model.routed for unit in model.units]
    ModelMonitoring(
        "monitoring",
        {
            "namespace": access.name_once_served(
                plan.namespace, facts.names, facts.established_timeout_s, facts.remedy, namespace
            ),
            "routers": routers,
            "disaggregated": watched.disaggregated,
            "rdma": plan.rdma,
            "leader": plan.release.router.replicas > 1,
            "slo_ttft_s": dict(watched.slo_ttft_s) or None,
            "usd_per_gpu_hour": watched.usd_per_gpu_hour,
            "endpoint_picker": plan.release.endpoint_picker.program.version,
            "labels": dict(watched.labels) or None,
        },
        after(opts, namespace),
    )
