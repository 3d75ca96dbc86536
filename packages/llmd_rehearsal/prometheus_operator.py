"""Stand-in for the Prometheus operator and the exporters: configures the rehearsal's real Prometheus and provides
metrics.

Monitors and rules are read from the cluster every second and written to Prometheus' configuration files, in the form
that the operator uses; Prometheus discovers pods itself. This process provides the metrics of device metrics exporter,
node exporter, node problem detector and kube-state-metrics under their real names: with healthy devices of the existing
nodes except for faults in the rehearsal's fault file (`resource: Node`), and with the actual restarts of pods and
taints of nodes.

Run by `python -m llmd_rehearsal.prometheus_operator --kubeconfig FILE --folder FOLDER --faults FILE`; ended by SIGTERM.
"""

import argparse
import http.server
import json
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml
from lightkube import generic_resource
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.client import Client
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Node, Pod

from llmd_rehearsal.oci_plugin.faults import NODE, Fault, Faults
from llmd_rehearsal.plugin_values import OperationRefusal
from llmd_rehearsal.pods.hardware import FAULTY_PORT
from llmd_rehearsal.time_scale import RULE_TIME_SCALE

PROMETHEUS_PORT = 9090
EXPORTERS_PORT = 9307
PROMETHEUS_URL = f"http://127.0.0.1:{PROMETHEUS_PORT}"
CONFIG_FILE, RULES_FILE = "prometheus.yml", "rules.yml"

INTERVAL_S = 1.0
"""Default seconds between two scrapes of a target by the rehearsal's Prometheus: most rules' windows then have five
scrapes.
"""

_DURATION = re.compile(r"(?<=\[)(?P<number>[0-9]+)(?P<unit>[smh])(?=\])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600}
_POLL_S = 1.0
_TIMEOUT_S = 5.0
_GROUP, _VERSION = "monitoring.coreos.com", "v1"
_KINDS = {"PodMonitor": "podmonitors", "ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}
_GPU = "amd.com/gpu"

Tree = Mapping[str, Any]


def scrape_configs(pod_monitors: Iterable[Tree], service_monitors: Iterable[Tree], kubeconfig: Path) -> list[Tree]:
    """Return Prometheus' scrape configurations for PodMonitors and ServiceMonitors, with the target labels that the
    Prometheus operator sets.
    """
    return [
        *(job for monitor in pod_monitors for job in _pod_jobs(monitor, kubeconfig)),
        *(job for monitor in service_monitors for job in _service_jobs(monitor, kubeconfig)),
        {
            "job_name": "simulated-exporters",
            "honor_labels": True,
            "static_configs": [{"targets": [f"127.0.0.1:{EXPORTERS_PORT}"]}],
        },
        {"job_name": "prometheus", "static_configs": [{"targets": [f"127.0.0.1:{PROMETHEUS_PORT}"]}]},
    ]


def _pod_jobs(monitor: Tree, kubeconfig: Path) -> Iterator[Tree]:
    spec, name = monitor["spec"], monitor["metadata"]["name"]
    labels = {"__meta_kubernetes_namespace": "namespace", "__meta_kubernetes_pod_name": "pod"}
    labels |= {f"__meta_kubernetes_pod_label_{_plain(key)}": _plain(key) for key in spec.get("podTargetLabels", [])}
    for index, endpoint in enumerate(spec["podMetricsEndpoints"]):
        yield {
            "job_name": f"podMonitor/{monitor['metadata']['namespace']}/{name}/{index}",
            "metrics_path": endpoint["path"],
            "kubernetes_sd_configs": [_discovery("pod", spec, kubeconfig)],
            "relabel_configs": [
                *_kept("__meta_kubernetes_pod_label_", spec["selector"]),
                _keep("__meta_kubernetes_pod_container_port_name", endpoint["port"]),
                *_copies(labels),
            ],
        }


def _service_jobs(monitor: Tree, kubeconfig: Path) -> Iterator[Tree]:
    spec, name = monitor["spec"], monitor["metadata"]["name"]
    labels = {
        "__meta_kubernetes_namespace": "namespace",
        "__meta_kubernetes_service_name": "service",
        "__meta_kubernetes_pod_name": "pod",
    }
    for index, endpoint in enumerate(spec["endpoints"]):
        yield {
            "job_name": f"serviceMonitor/{monitor['metadata']['namespace']}/{name}/{index}",
            "metrics_path": endpoint["path"],
            "kubernetes_sd_configs": [_discovery("endpointslice", spec, kubeconfig)],
            "relabel_configs": [
                *_kept("__meta_kubernetes_service_label_", spec["selector"]),
                _keep("__meta_kubernetes_endpointslice_port_name", endpoint["port"]),
                *_copies(labels),
            ],
        }


def _discovery(role: str, spec: Tree, kubeconfig: Path) -> Tree:
    names = list(spec["namespaceSelector"].get("matchNames", []))
    return {"role": role, "kubeconfig_file": str(kubeconfig), "namespaces": {"names": names}}


def _kept(prefix: str, selector: Tree) -> list[Tree]:
    rows = [_keep(f"{prefix}{_plain(key)}", value) for key, value in selector.get("matchLabels", {}).items()]
    expressions = selector.get("matchExpressions", [])
    return [*rows, *(_keep(f"{prefix}{_plain(row['key'])}", "|".join(row["values"])) for row in expressions)]


def _keep(label: str, pattern: str) -> Tree:
    return {"source_labels": [label], "regex": pattern, "action": "keep"}


def _copies(labels: Mapping[str, str]) -> list[Tree]:
    return [{"source_labels": [source], "target_label": target} for source, target in labels.items()]


def _plain(key: str) -> str:
    """Return a Kubernetes label key in the form of Prometheus' label names."""
    return "".join(letter if letter.isalnum() else "_" for letter in key)


def config(jobs: Sequence[Tree], folder: Path, interval_s: float) -> Tree:
    """Return the configuration of the rehearsal's Prometheus for these scrape jobs; `interval_s` is the time in seconds
    between scrapes and between evaluations of rules.
    """
    interval = duration(interval_s)
    times = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
    return {"global": times, "rule_files": [str(folder / RULES_FILE)], "scrape_configs": list(jobs)}


def rule_file(rules: Iterable[Tree], interval_s: float = INTERVAL_S) -> Tree:
    """Return the groups of all PrometheusRules as one rule file, with their durations multiplied by
    `RULE_TIME_SCALE`.
    """
    interval = duration(interval_s)
    groups: list[Tree] = []
    for group in (group for rule in rules for group in rule["spec"]["groups"]):
        scaled = [
            {**rule, "expr": _DURATION.sub(lambda match: _scaled_duration(match[0]), rule["expr"])}
            | ({"for": _scaled_duration(rule["for"])} if "for" in rule else {})
            for rule in group["rules"]
        ]
        groups.append({**group, "interval": interval, "rules": scaled})
    return {"groups": groups}


def duration(seconds: float) -> str:
    """Return a duration in Prometheus' notation, for example `1500ms`."""
    return f"{round(seconds * 1000)}ms"


def _scaled_duration(text: str) -> str:
    return f"{int(text[:-1]) * _UNIT_S[text[-1]] * RULE_TIME_SCALE * 1000:.0f}ms"


@dataclass(frozen=True)
class NodeState:
    """State of a simulated node that its exporters report: number of GPUs, keys of its taints, and its fault (None if
    healthy).
    """

    gpus: int
    taints: tuple[str, ...] = ()
    fault: Fault | None = None


def exposition(nodes: Mapping[str, NodeState], restarts: Iterable[tuple[str, str, str, int]], now_s: float) -> str:
    """Return the metrics of all nodes' exporters in Prometheus' text format.

    Args:
        nodes: states of the nodes with GPUs, by name.
        restarts: namespace, pod, container and number of restarts, for each container.
        now_s: present Unix time in seconds.
    """
    lines = [
        f'kube_pod_container_status_restarts_total{{namespace="{space}",pod="{pod}",container="{name}"}} {count}'
        for space, pod, name, count in restarts
    ]
    for node, state in nodes.items():
        lines += [f'kube_node_spec_taint{{node="{node}",key="{key}"}} 1' for key in state.taints]
        lines += [
            f'oke_npd_check_status_code{{instance="{node}",check="gpu-count"}} {int(state.fault is Fault.DEAD_GPU)}',
            f'oke_npd_check_last_run_timestamp_seconds{{instance="{node}",check="gpu-count"}} {now_s}',
        ]
        for index in range(state.gpus):
            changed = _changed(state.fault if index == FAULTY_PORT else None, now_s)
            gpu = f'{{hostname="{node}",gpu_id="{index}"}}'
            lines += [f"{name}{gpu} {changed.get(name, value)}" for name, value in _HEALTHY_GPU.items()]
            port = f'{{instance="{node}",device="mlx5_{index}",port="1"}}'
            lines += [f"{name}{port} {changed.get(name, value)}" for name, value in _HEALTHY_PORT.items()]
    return "\n".join([*lines, ""])


def _changed(fault: Fault | None, now_s: float) -> Mapping[str, float]:
    """Return the metric values of a faulty GPU or port that differ from a healthy one's."""
    match fault:
        case Fault.MEMORY_ERRORS:
            return {"gpu_ecc_uncorrect_total": 1}
        case Fault.XGMI_ERRORS:
            return {"gpu_ecc_uncorrect_xgmi_wafl": 1}
        case Fault.HOT_GPU:
            return {"gpu_junction_temperature": 105}
        case Fault.LINK_DOWN:
            return {"node_infiniband_physical_state_id": 2}
        case Fault.CONGESTION:
            return {"node_infiniband_port_transmit_wait_total": now_s * _CONGESTED_PER_S}
        case _:
            return {}


_CONGESTED_PER_S = 5e6
_HEALTHY_GPU = {
    "gpu_ecc_uncorrect_total": 0,
    "gpu_ecc_uncorrect_xgmi_wafl": 0,
    "gpu_junction_temperature": 55,
    "gpu_gfx_activity": 60,
    "gpu_package_power": 500,
    "gpu_used_vram": 160000,
}
_HEALTHY_PORT = {
    "node_infiniband_physical_state_id": 5,
    "node_infiniband_port_transmit_wait_total": 0,
    "node_infiniband_port_data_transmitted_bytes_total": 0,
    "node_infiniband_port_data_received_bytes_total": 0,
}


def _nodes(nodes: Iterable[Node], faults: Faults) -> Iterator[tuple[str, NodeState]]:
    for node in nodes:
        status: Any = node.status  # lightkube's capacity is untyped
        capacity: Mapping[str, str] = (status and status.capacity) or {}
        if node.metadata is not None and _GPU in capacity:
            name = node.metadata.name or ""
            rule = faults.take(NODE, [name], "watch")
            taints = tuple(taint.key for taint in (node.spec and node.spec.taints) or ())
            yield name, NodeState(int(capacity[_GPU]), taints, rule.fault if rule else None)


class _Exporters(http.server.BaseHTTPRequestHandler):
    """HTTP handler that answers every GET with the latest metrics."""

    text = ""

    def do_GET(self) -> None:
        content = _Exporters.text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log no request."""


def _objects(client: Client, kind: str) -> list[Tree]:
    generic: Any = generic_resource  # results of its functions are untyped
    resource = generic.create_namespaced_resource(_GROUP, _VERSION, kind, _KINDS[kind])
    return [item.to_dict() for item in client.list(resource, namespace="*")]


def _once(client: Client, folder: Path, kubeconfig: Path, faults: Faults, interval_s: float) -> None:
    nodes = dict(_nodes(client.list(Node), faults))
    restarts = [
        (meta.namespace or "", meta.name or "", container.name, container.restartCount)
        for pod in client.list(Pod, namespace="*")
        if (meta := pod.metadata) and pod.status
        for container in pod.status.containerStatuses or []
    ]
    _Exporters.text = exposition(nodes, restarts, time.time())
    jobs = scrape_configs(_objects(client, "PodMonitor"), _objects(client, "ServiceMonitor"), kubeconfig)
    rules = rule_file(_objects(client, "PrometheusRule"), interval_s)
    files = {CONFIG_FILE: config(jobs, folder, interval_s), RULES_FILE: rules}
    texts = {name: yaml.safe_dump(tree, sort_keys=True) for name, tree in files.items()}
    if any(not (folder / name).is_file() or (folder / name).read_text() != text for name, text in texts.items()):
        for name, text in texts.items():
            (folder / name).write_text(text)
        httpx2.post(f"{PROMETHEUS_URL}/-/reload", timeout=_TIMEOUT_S, trust_env=False).raise_for_status()


def main() -> int:
    """Update the configuration files of the rehearsal's Prometheus and the exporters' metrics every second until
    SIGTERM; report failures on standard error and retry.
    """
    parser = argparse.ArgumentParser(prog="llmd_rehearsal.prometheus_operator", description="The simulated operator.")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="of the local cluster")
    parser.add_argument("--folder", type=Path, required=True, help="where Prometheus reads its files")
    parser.add_argument("--faults", type=Path, required=True, help="which nodes have a fault; need not be there")
    parser.add_argument("--interval", type=float, default=INTERVAL_S, help="seconds between two scrapes")
    arguments = parser.parse_args()
    faults = Faults(arguments.faults)
    client = Client(config=KubeConfig.from_file(arguments.kubeconfig).get(), trust_env=False)
    exporters = http.server.ThreadingHTTPServer(("127.0.0.1", EXPORTERS_PORT), _Exporters)
    threading.Thread(target=exporters.serve_forever, daemon=True).start()
    while True:
        try:
            _once(client, arguments.folder, arguments.kubeconfig, faults, arguments.interval)
        except (ApiError, httpx2.HTTPError, OSError, OperationRefusal) as error:
            sys.stderr.write(f"{json.dumps(str(error))}\n")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main())
