"""The Prometheus that a stack counts on without making it: does it answer, and does it scrape what is deployed?"""

from collections.abc import Callable

from llmd_pods.errors import KitError

from llmd_oke.config import ExistingCluster
from llmd_oke.operations.kubeconfig import kubeconfig_context
from llmd_oke.operations.preflight import Finding, Verdict
from llmd_oke.operations.prometheus import Series, prometheus_url, query, service_path
from llmd_oke.planning import Plan

CHECK = "prometheus"

Ask = Callable[[str], list[Series]]
"""An instant query of the stack's Prometheus. Raises KitError where it doesn't answer."""


def prometheus_findings(plan: Plan, ask: Ask | None = None) -> list[Finding]:
    """How the Prometheus is that a stack's monitors, alerts or scaling count on; none where the stack makes it.

    Args:
        plan: the stack's.
        ask: asks it; where it is in the cluster, through the API server of the environment's kubeconfig, if left out.
    """
    url, watched = prometheus_url(plan), plan.monitoring
    if url is None or (watched is not None and watched.install):
        return []
    path = "monitoring" if watched else "models"
    if not isinstance(plan.cluster, ExistingCluster):
        value = f"a stack makes the cluster that {url} is to be in"
        return [Finding(CHECK, path, Verdict.UNKNOWN, value, "Have it there before the models come.")]
    try:
        ask = ask or _asker(plan, url)
        ask("vector(1)")
    except KitError as error:
        remedy = error.remedy or "docs/how-to/monitor.md says what it must be."
        return [Finding(CHECK, path, Verdict.PROBLEM, error.message, remedy)]
    return [Finding(CHECK, path, Verdict.FINE, f"{url} answers"), *_scraped(plan, path, ask)]


def _scraped(plan: Plan, path: str, ask: Ask) -> list[Finding]:
    """Whether it has targets in the stack's namespace; before the first update there are none."""
    up = ask(f'up{{namespace="{plan.namespace}"}}')
    if not up:
        value = f"it scrapes nothing in the namespace {plan.namespace}"
        remedy = "Right before the first update; else docs/alerts/stack-not-scraped.md says what to look at."
        return [Finding(CHECK, path, Verdict.UNKNOWN, value, remedy)]
    down = sorted({row.labels.get("pod", "") for row in up if row.value == 0})
    if down:
        value = f"{len(down)} of its targets in {plan.namespace} don't answer it: {', '.join(down[:3])}"
        return [Finding(CHECK, path, Verdict.PROBLEM, value, "docs/alerts/stack-not-scraped.md says what to look at.")]
    return [Finding(CHECK, path, Verdict.FINE, f"it scrapes {len(up)} targets in {plan.namespace}")]


def _asker(plan: Plan, url: str) -> Ask:
    import httpx2  # noqa: PLC0415 - a plan without Prometheus does without
    from lightkube.config.client_adapter import user_auth, verify_cluster  # noqa: PLC0415

    proxy = service_path(url)
    if proxy is None:
        return lambda promql: query(url, promql)
    config = kubeconfig_context(plan.kubeconfig_context)
    verify = verify_cluster(config.cluster, config.user, config.abs_file) if config.user else True
    http = httpx2.Client(auth=user_auth(config.user), verify=verify)
    return lambda promql: query(config.cluster.server.rstrip("/") + proxy, promql, http=http)
