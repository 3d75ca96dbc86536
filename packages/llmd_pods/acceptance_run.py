"""Program that leads the acceptance of a pool's nodes: it starts a pod on each node that hasn't passed, schedules the
pairs, judges, and sets taints.

It runs in a pod without GPUs and needs only the standard library. The exit code is 0 if enough nodes may serve, else 1
with the cause. A failed node gets a taint, which a passing node loses. If the image lacks a tool, no node is judged.
The program gives up its rights when it ends, even after an error.
"""

import http.client
import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from llmd_base.errors import KitError

from llmd_pods.acceptance import (
    LABEL,
    RESULT_KEY,
    TAINT_EFFECT,
    TAINT_KEY,
    TAINT_VALUE,
    CheckName,
    CheckResult,
    NodeReport,
    NodeRequirements,
    NodeResult,
    binding_names,
    from_fields,
    judge_rounds,
    missing_tools,
    report_from_json,
    result_from_json,
    result_name,
    tournament,
    verdict_of,
)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TERMINATION_LOG = Path("/dev/termination-log")
REQUEST_TIMEOUT_S = 30.0
PAUSES_S = (0.0, 1.0, 4.0, 15.0)
PAUSE_S = 1.0
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
NODE_VARIABLE = "LLMD_OKE_ACCEPTANCE"
REPORT_KEY = "json"
UNTESTED = "untested"
"""Suffix of the name of the ConfigMap with the nodes that could not be tested and the reasons; the Job owns the
ConfigMap.
"""

RIGHTS_REMEDY = "A Job that failed has deleted its bindings: `llmd-oke up` or `pulumi up --refresh` makes them again."

Object = dict[str, Any]


@dataclass(frozen=True)
class RunRequest:
    """Configuration of the acceptance of a pool.

    Attributes:
        pool: name of the pool.
        selector: label selector of the pool's nodes.
        namespace: namespace of the acceptance.
        needed: number of nodes that must be able to serve.
        on_failure: `hold` makes every failed node an error, `spares` only too few usable nodes.
        image: image of the nodes' pods.
        devices: number of devices that a node must have allocatable, by resource name.
        checks: checks to run.
        limits: requirements of the nodes.
        pod: manifest of the nodes' pods, without name and node.
        node_request: fields of `NodeRequest` that are equal for all pods.
        most_rounds: maximum number of rounds, and so of partners of a node.
        placement_limit_s: seconds after which a pod that isn't scheduled is given up: its node has no free devices
            because it serves.
        start_limit_s: time limit in seconds until the pods are ready.
        limit_s: time limit of the acceptance in seconds.
        only: names of the nodes to test; empty for all nodes that have not passed before.
        again: whether nodes that passed before are tested too.
    """

    pool: str
    selector: str
    namespace: str
    needed: int
    on_failure: Literal["spares", "hold"]
    image: str
    devices: Mapping[str, int]
    checks: tuple[CheckName, ...]
    limits: NodeRequirements
    pod: Mapping[str, Any]
    node_request: Mapping[str, Any]
    most_rounds: int
    placement_limit_s: float
    start_limit_s: float
    limit_s: float
    only: tuple[str, ...] = ()
    again: bool = False


def request_from_json(text: str) -> RunRequest:
    """Return the configuration of an acceptance from its JSON text."""
    value: dict[str, Any] = json.loads(text)
    return from_fields(RunRequest, {**value, "limits": NodeRequirements(**value["limits"])})


class KubernetesApi:
    """Client of the Kubernetes API with the pod's service account, by the standard library."""

    def __init__(self, url: str, account: Path = ACCOUNT, pause: Callable[[float], None] = time.sleep) -> None:
        self._url = url
        self._account = account
        self._pause = pause
        self._context = ssl.create_default_context(cafile=str(account / "ca.crt"))

    def ask(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Object | None:
        """Send a request to the API server and return the object that it answers with; None if the object doesn't
        exist.

        Raises:
            KitError: the API server refuses, or doesn't answer in several attempts.
            ConflictError: another client has changed or created the object.
            MissingRightError: the service account lacks the right.
        """
        problem = ""
        data = None if body is None else json.dumps(body).encode()
        for pause_s in PAUSES_S:
            self._pause(pause_s)
            token = (self._account / "token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
            request = urllib.request.Request(f"{self._url}{path}", data, headers, method=method)  # noqa: S310 - https
            try:
                with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=self._context) as answer:  # noqa: S310
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}: {error.read(2000).decode(errors='replace')}"
                if error.code == HTTPStatus.NOT_FOUND:
                    return None
                if error.code == HTTPStatus.CONFLICT:
                    raise ConflictError(f"{method} {path}: {problem}") from error
                if error.code == HTTPStatus.FORBIDDEN:
                    raise MissingRightError(f"{method} {path}: {problem}", RIGHTS_REMEDY) from error
                if error.code < HTTPStatus.TOO_MANY_REQUESTS:
                    break
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = str(error)
        raise KitError(f"{method} {path}: {problem}")

    def items(self, path: str) -> list[Object]:
        """Return the objects of the Kubernetes list at an API path; empty if the path doesn't exist."""
        return (self.ask("GET", path) or {}).get("items", [])


class ConflictError(KitError):
    """Error for a change that conflicts with another client's change (HTTP 409)."""


class MissingRightError(KitError):
    """Error for a request that the service account has no right to (HTTP 403)."""


@dataclass
class Worker:
    """Pod on a tested node, with its last report. `problem` is the reason why no further report will come; `untested`
    means that the pod could not be scheduled.
    """

    index: int
    node: Object
    pod: str
    report: NodeReport
    problem: str = ""
    untested: bool = False

    @property
    def name(self) -> str:
        """Name of the node that the pod tests."""
        return self.node["metadata"]["name"]

    @property
    def lost(self) -> bool:
        """True if no further report will come from the node's pod."""
        return bool(self.problem) or self.untested


@dataclass
class AcceptanceRun:
    """Acceptance of a pool's nodes in progress: its configuration, its Job, and the pods on the tested nodes."""

    request: RunRequest
    api: KubernetesApi
    job: str
    uid: str
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    workers: list[Worker] = field(default_factory=list[Worker])

    def lead(self) -> tuple[list[NodeResult], list[str]]:
        """Run the acceptance; return the results of all nodes of the pool, and the reasons why too few nodes may serve
        (empty if enough may).

        Raises:
            KitError: nothing can be judged: the image lacks tools or can't be pulled, or the API server refuses.
        """
        nodes = self.api.items(f"/api/v1/nodes?labelSelector={quote(self.request.selector)}")
        nodes.sort(key=_name)
        kept = {result.node: result for result in self._kept()}
        targets = self._targets(nodes, kept)
        short = {_name(node): text for node in targets if (text := shortage(node, self.request.devices))}
        self.workers = [
            Worker(index, node, f"{self.job}-{index}", NodeReport(_name(node)))
            for index, node in enumerate(node for node in targets if _name(node) not in short)
        ]
        try:
            reports = self._measure()
        finally:
            for worker in self.workers:
                self.api.ask("DELETE", self._path(f"pods/{worker.pod}"))
        absent = [(node, short[_name(node)]) for node in targets if _name(node) in short]
        new = [replace(self._result(node, ()), verdict="failed", reason=text) for node, text in absent]
        new += self._verdicts(reports)
        for result in new:
            self._keep(result)
        untested = {result.node: result.reason for result in new if result.verdict == "not tested"}
        self._apply(f"{self.job}-{UNTESTED}", {REPORT_KEY: json.dumps(untested)})
        results = {**{name: kept[name] for name in map(_name, nodes) if name in kept}, **{r.node: r for r in new}}
        return list(results.values()), judge_pool(self.request, [_name(node) for node in nodes], results)

    def give_up_rights(self, *, passed: bool) -> None:
        """Remove the rights of the Job's service account.

        After a pass the bindings lose their subjects but remain, so that the stack's state stays in sync. After a
        failure the bindings are deleted, since the next attempt needs them created again.

        Raises:
            KitError: the API server refuses.
        """
        names, nobody = binding_names(self.job), {"subjects": None}
        within = f"{_RBAC}/namespaces/{self.request.namespace}/rolebindings/{names.of_namespace}"
        for path in (within, f"{_RBAC}/clusterrolebindings/{names.of_cluster}"):
            if passed:
                self.api.ask("PATCH", path, nobody, "application/merge-patch+json")
            else:
                self.api.ask("DELETE", path)

    def _targets(self, nodes: Sequence[Object], kept: Mapping[str, NodeResult]) -> list[Object]:
        """Return the nodes to test."""
        names = {_name(node) for node in nodes}
        if unknown := sorted(set(self.request.only) - names):
            raise KitError(f"The pool {self.request.pool} has no node {', '.join(unknown)}.", ", ".join(sorted(names)))
        if self.request.only:
            return [node for node in nodes if _name(node) in self.request.only]

        passed = {(name, result.uid) for name, result in kept.items() if result.verdict == "passed"}
        return [node for node in nodes if self.request.again or (_name(node), node["metadata"]["uid"]) not in passed]

    def _measure(self) -> list[NodeReport]:
        deadline_s = self.clock() + self.request.limit_s
        for worker in self.workers:
            self.api.ask("POST", self._path("pods"), self._pod(worker))
        self._follow(lambda report: report.ready, self.clock() + self.request.start_limit_s)
        players = [worker for worker in self.workers if worker.report.sound and not worker.lost]
        if missing := missing_tools(worker.report for worker in self.workers):
            raise KitError(f"{self.request.image}: {'; '.join(missing)}. Nothing was judged.", "Use vLLM's ROCm image.")
        rounds = tournament([player.index for player in players], self.request.most_rounds) if self._is_paired() else []
        print(f"{len(players)} nodes measure with each other in {len(rounds)} rounds", flush=True)
        self._apply(f"{self.job}-schedule", {REPORT_KEY: json.dumps(rounds)})
        for worker in self.workers:
            if not worker.lost and worker not in players:
                worker.report = replace(worker.report, over=True)
        self._follow(lambda report: report.over, deadline_s)
        return [worker.report for worker in players]

    def _is_paired(self) -> bool:
        return any(name in self.request.checks for name in ("links", "all-reduce"))

    def _follow(self, is_there: Callable[[NodeReport], bool], deadline_s: float) -> None:
        """Wait until `is_there` holds for the report of each pod that hasn't ended, or the deadline is over."""
        placed_s = self.clock() + self.request.placement_limit_s
        while True:
            waiting = [worker for worker in self.workers if not worker.lost and not is_there(worker.report)]
            late = self.clock() > deadline_s
            for worker in waiting:
                self._look(worker, late=late, unplaced=self.clock() > placed_s)
            if late or all(worker.lost or is_there(worker.report) for worker in waiting):
                return
            self.pause(PAUSE_S)

    def _look(self, worker: Worker, *, late: bool, unplaced: bool) -> None:
        data = (self.api.ask("GET", self._path(f"configmaps/{self.job}-{worker.index}")) or {}).get("data", {})
        before = worker.report
        if REPORT_KEY in data:
            worker.report = report_from_json(data[REPORT_KEY])
        if worker.report != before and not late:
            return
        pod = self.api.ask("GET", self._path(f"pods/{worker.pod}")) or {}
        status: Object = pod.get("status", {})
        pulls = [item for item in _states(status, "waiting") if "Image" in item.get("reason", "")]
        if pulls:
            if late:
                image = pulls[0].get("message") or pulls[0]["reason"]
                raise KitError(f"{self.request.image} can't be pulled on {worker.name}: {image}. Nothing was judged.")
        elif not pod or status.get("phase") in {"Failed", "Succeeded"}:
            worker.problem = "" if worker.report.over else f"its pod ended: {_last_words(status)}"
        elif (reason := _unplaced(status)) and (unplaced or late):
            worker.untested, worker.problem = True, f"its GPUs or ports are in use, or it is closed: {reason}"
        if late and not worker.lost and not worker.report.over:
            worker.problem = "its pod did not report in time"

    def _verdicts(self, reports: Sequence[NodeReport]) -> Iterator[NodeResult]:
        paired = judge_rounds(reports, self.request.limits, self.request.checks) if self._is_paired() else {}
        for worker in self.workers:
            result = self._result(worker.node, [*worker.report.checks, *paired.get(worker.name, ())])
            if worker.untested:
                result = replace(result, verdict="not tested", reason=worker.problem)
            elif worker.problem and result.verdict == "passed":
                result = replace(result, verdict="failed", reason=worker.problem)
            yield result

    def _result(self, node: Object, checks: Sequence[CheckResult]) -> NodeResult:
        failed = [f"{check.name}: {check.text}" for check in checks if check.outcome == "failed"]
        return NodeResult(
            node=_name(node),
            uid=node["metadata"]["uid"],
            verdict=verdict_of(checks),
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            image=self.request.image,
            checks=tuple(checks),
            reason="; ".join(failed),
        )

    def _kept(self) -> Iterator[NodeResult]:
        path = self._path(f"configmaps?labelSelector={quote(f'{LABEL}={self.request.pool}')}")
        for item in self.api.items(path):
            data: dict[str, str] = item.get("data") or {}
            try:
                yield result_from_json(data.get(RESULT_KEY, ""))
            except ValueError:
                continue

    def _keep(self, result: NodeResult) -> None:
        print(f"{result.node}  {result.verdict}  {result.reason}", flush=True)
        if result.verdict == "not tested":
            return
        self._set_taint(result.node, failed=result.verdict == "failed")
        name = result_name(self.request.pool, result.node)
        self._apply(name, {RESULT_KEY: result.to_json()}, {LABEL: self.request.pool})

    def _set_taint(self, node: str, *, failed: bool) -> None:
        for _ in PAUSES_S:
            current = self.api.ask("GET", f"/api/v1/nodes/{node}") or {}
            taints: list[Object] = current.get("spec", {}).get("taints") or []
            others = [taint for taint in taints if taint["key"] != TAINT_KEY]
            own = [{"key": TAINT_KEY, "value": TAINT_VALUE, "effect": TAINT_EFFECT}] if failed else []
            if not current or (len(taints) > len(others)) == failed:
                return
            version = current["metadata"]["resourceVersion"]
            patch = {"metadata": {"resourceVersion": version}, "spec": {"taints": [*others, *own]}}
            try:
                self.api.ask("PATCH", f"/api/v1/nodes/{node}", patch, "application/merge-patch+json")
            except ConflictError:
                continue
            return
        raise KitError(f"{node} changes so often that it can't be tainted.")

    def _pod(self, worker: Worker) -> Object:
        """Return the manifest of a worker's pod, owned by the Job."""
        pod: Object = json.loads(json.dumps(self.request.pod))
        pod["metadata"] |= self._metadata(worker.pod)
        field_ = {"key": "metadata.name", "operator": "In", "values": [worker.name]}
        terms = {"nodeSelectorTerms": [{"matchFields": [field_]}]}
        pod["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        node_request = {
            **self.request.node_request,
            "namespace": self.request.namespace,
            "run": self.job,
            "job": self.job,
            "uid": self.uid,
            "index": worker.index,
            "nodes": len(self.workers),
        }
        pod["spec"]["containers"][0]["env"].append({"name": NODE_VARIABLE, "value": json.dumps(node_request)})
        return pod

    def _metadata(self, name: str, labels: Mapping[str, str] | None = None) -> Object:
        """Return the metadata of an object: with labels it outlives the Job, without labels the Job owns it."""
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.job, "uid": self.uid}
        more = {"labels": labels} if labels else {"ownerReferences": [owner]}
        return {"name": name, "namespace": self.request.namespace, **more}

    def _apply(self, name: str, data: Mapping[str, str], labels: Mapping[str, str] | None = None) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": self._metadata(name, labels), "data": data}
        path = self._path(f"configmaps/{name}?fieldManager=llmd-oke&force=true")
        self.api.ask("PATCH", path, body, "application/apply-patch+yaml")

    def _path(self, rest: str) -> str:
        return f"/api/v1/namespaces/{self.request.namespace}/{rest}"


def judge_pool(request: RunRequest, nodes: Sequence[str], results: Mapping[str, NodeResult]) -> list[str]:
    """Return the reasons why too few of a pool's nodes may serve; empty if enough may. A node that wasn't tested
    because it serves keeps its earlier verdict.
    """
    failed = [name for name in nodes if name in results and results[name].verdict == "failed"]
    usable = len(nodes) - len(failed)
    reasons = [f"{name} failed ({results[name].reason})" for name in failed]
    if failed and request.on_failure == "hold":
        return [*reasons, "acceptance.onFailure is hold: nothing is served until all nodes pass"]
    if usable < request.needed:
        return [*reasons, f"{usable} of {len(nodes)} nodes may serve, the models need {request.needed}"]
    return []


def shortage(node: Object, devices: Mapping[str, int]) -> str:
    """Return the reason why a node can't be tested: it isn't Ready or lacks allocatable devices; empty if it can be
    tested.
    """
    status: Object = node.get("status", {})
    conditions: list[Object] = status.get("conditions", [])
    if not any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions):
        return "the node is not Ready"
    allocatable: Mapping[str, str] = status.get("allocatable", {})
    short = [(int(allocatable.get(name, 0)), need, name) for name, need in sorted(devices.items())]
    return " and ".join(f"it has {has} of {need} {name}" for has, need, name in short if has < need)


def _name(node: Object) -> str:
    return node["metadata"]["name"]


def _unplaced(status: Object) -> str:
    conditions: list[Object] = status.get("conditions", [])
    waiting = [item for item in conditions if item["type"] == "PodScheduled" and item["status"] != "True"]
    return str(waiting[0].get("message") or "not scheduled") if waiting else ""


def _last_words(status: Object) -> str:
    words = next((item["message"].strip() for item in _states(status, "terminated") if item.get("message")), "")
    return words.splitlines()[-1] if words else str(status.get("message") or status.get("phase") or "it is gone")


def _states(status: Object, kind: str) -> list[dict[str, str]]:
    containers: list[Object] = status.get("containerStatuses", [])
    states: list[Object] = [container.get("state", {}) for container in containers]
    return [state[kind] for state in states if state.get(kind)]


def judge(run: AcceptanceRun) -> list[str]:
    """Run an acceptance and give up its rights, also after an error; return the reasons why too few nodes may serve.

    Raises:
        KitError: nothing can be judged, or the rights can't be given up.
    """
    passed = False
    try:
        _, problems = run.lead()
        passed = not problems
    finally:
        run.give_up_rights(passed=passed)
    return problems


def _end(*_: object) -> None:
    raise KitError("The Job was ended before all nodes were judged.")


def main() -> int:
    """Run the acceptance that the file in the only argument describes; return the exit code."""
    signal.signal(signal.SIGTERM, _end)
    try:
        request = request_from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        api = KubernetesApi(f"https://{f'[{host}]' if ':' in host else host}:{port}")
        run = AcceptanceRun(request, api, os.environ["JOB_NAME"], os.environ["JOB_UID"])
        problems = judge(run)
    except KitError as error:
        problems = [" ".join(filter(None, (error.message, error.remedy)))]
    if not problems:
        return 0
    cause = "; ".join(problems)
    print(cause, file=sys.stderr, flush=True)
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(cause[:4000])
    return 1


if __name__ == "__main__":
    sys.exit(main())
