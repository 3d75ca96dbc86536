"""Prometheus with its operator, Grafana, node exporter and kube-state-metrics, from the chart kube-prometheus-stack."""

from typing import TypedDict

import pulumi

from llmd_oke.catalogue.operators import operator
from llmd_oke.objects import inputs
from llmd_oke.operators.helm_operators import declare_release, namespace_of


class PrometheusStackArgs(TypedDict):
    """It takes nothing: version and settings come from the catalogue."""


class PrometheusStack(pulumi.ComponentResource):
    """Prometheus takes the monitors and rules of all namespaces, Grafana their dashboards. Not beside another
    Prometheus operator that watches the same namespaces: two would take turns.
    """

    namespace: pulumi.Output[str]
    """Namespace that it runs in; known once it is ready."""

    def __init__(self, name: str, args: PrometheusStackArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:PrometheusStack", name, inputs(args), opts)
        facts = operator("kube-prometheus-stack")
        self.namespace = namespace_of(declare_release(self, name, facts, []), facts)
        self.register_outputs({"namespace": self.namespace})
