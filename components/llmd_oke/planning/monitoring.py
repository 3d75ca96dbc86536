"""Plan and checks of a stack's monitoring and tracing."""

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from llmd_base.errors import SET, Problem
from llmd_base.records import record

from llmd_oke.catalogue.monitoring import monitoring as facts
from llmd_oke.catalogue.monitoring import watch
from llmd_oke.catalogue.releases import Release, release_names
from llmd_oke.catalogue.releases import release as known_release
from llmd_oke.config import StackConfig
from llmd_oke.planning.model_plan import PlannedPool
from llmd_oke.planning.network import control_plane_cidrs
from llmd_oke.planning.network_policies import network_policies
from llmd_oke.planning.plan import Advice, MonitoringPlan, Plan, TracingPlan
from llmd_oke.planning.releases import used_release

NODE_CHECKS = "/var/lib/node_exporter/textfile_collector"
"""Directory on GPU nodes in which node checks write their results for the node exporter
(`values/cloud-init/node-checks.sh.j2`).
"""

OPERATOR = "kube-prometheus-stack"
"""Name of the operator in `values/operators` that `monitoring: install` installs."""


def monitoring(config: StackConfig, pools: Sequence[PlannedPool]) -> MonitoringPlan | None:
    """Return the plan of the monitoring of a stack with these pools; None with `monitoring: none`."""
    if config.monitoring == "none":
        return None
    return MonitoringPlan(
        install=config.monitoring == "install",
        url=config.prometheus.url if config.prometheus else facts().url,
        labels=(config.prometheus and config.prometheus.labels) or None,
        disaggregated=any(model.topology.disaggregated for model in config.models),
        slo_ttft_s={
            model.object_name: model.slo.ttft_ms / 1000
            for model in config.models
            if model.slo is not None and model.slo.ttft_ms is not None
        }
        or None,
        usd_per_gpu_hour=pools[0].shape.price_usd_per_gpu_hour if pools else None,
        canaries_every_s=config.canaries.every_seconds if config.canaries else None,
    )


def monitoring_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on rules and panels that are left out because the release lacks their metrics, and on the
    configuration that an existing node exporter needs.
    """
    picker = plan.release.endpoint_picker.dialect
    if plan.monitoring is not None and (lacking := watch(picker.metrics).lacking):
        why = f"endpoint picker {picker.version} has no metric for it (values/endpoint-pickers)"
        yield Advice("monitoring", f"left out: {', '.join(lacking)}; {why}")
    if plan.monitoring is not None and not plan.monitoring.install:
        text = (
            f"the node exporter of your Prometheus must read {NODE_CHECKS} of GPU nodes"
            " (--collector.textfile.directory), or the alert NodeFailsChecks never fires"
        )
        yield Advice("monitoring", text)


def monitoring_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield the problems of monitoring settings that contradict the layer or each other."""
    mode = config.monitoring
    if mode == "install" and config.layer == "serving":
        why = "what all stacks of a cluster share belongs to the stack of its cluster layer"
        yield Problem("monitoring", mode, "existing here, and install in the stack of the cluster layer", why)
    if mode == "existing" and config.layer == "cluster":
        why = "the cluster layer deploys no models to watch"
        yield Problem("monitoring", mode, "install or none", why)
    if config.canaries is not None and (mode == "none" or config.layer == "cluster"):
        why = "nobody would hear of what they find" if mode == "none" else "the cluster layer serves no models"
        yield Problem("canaries", SET, "nothing, or monitoring of the models", why)
    for i, model in enumerate(config.models if config.canaries else ()):
        if (connector := model.engine.kv_cache.connector) != "nixl":
            why = "canaries hand KV cache over by NIXL's protocol alone"
            yield Problem(f"models[{i}].engine.kvCache.connector", connector, "nixl, or no canaries", why)
    if config.prometheus is not None:
        if mode != "existing":
            why = f"with monitoring: {mode} there is no Prometheus of others"
            yield Problem("prometheus", config.prometheus.url, "nothing, or monitoring: existing", why)
        elif (namespace := _namespace(config.prometheus.url)) and (
            control_plane_cidrs(config) is not None or network_policies(config).engine != "none"
        ):
            own = _namespace(facts().url)
            if namespace != own:
                why = f"network policies let Prometheus read metrics from the namespace {own}"
                yield Problem("prometheus.url", config.prometheus.url, f"a Service in {own}, not in {namespace}", why)


def _namespace(url: str) -> str | None:
    """Return the namespace in the URL of a Service in the cluster (`service.namespace.svc…`); None for any
    other URL.
    """
    parts = (urlsplit(url).hostname or "").split(".")
    return parts[1] if parts[2:3] == ["svc"] else None


def tracing(config: StackConfig) -> TracingPlan | None:
    """Return the plan of tracing; None if the stack file has none."""
    asked = config.tracing
    return None if asked is None else record(TracingPlan, asked)


def tracing_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem if programs of the release aren't known to export traces."""
    release = used_release(config)
    if config.tracing is None or release is None:
        return
    if silent := list(_silent(config, release)):
        why = f"it is not known that traces are sent by {', '.join(silent)}"
        releases = ((name, known_release(name)) for name in release_names())
        able = [name for name, known in releases if known and not list(_silent(config, known))]
        yield Problem("tracing.endpoint", config.tracing.endpoint, f"nothing, or release {' or '.join(able)}", why)


def _silent(config: StackConfig, release: Release) -> Iterator[str]:
    routed = any(model.router.mode != "none" for model in config.models)
    if routed and not release.router.traces:
        yield f"endpoint picker {release.endpoint_picker.program.version}"
    if (
        any(model.topology.disaggregated for model in config.models)
        and release.routing_sidecar.tracing_arguments is None
    ):
        yield f"routing sidecar {release.routing_sidecar.program.version}"
    if not release.vllm.traces:
        yield f"vLLM of {release.vllm.image.reference}"
