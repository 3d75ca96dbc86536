"""Rehearsed stack whose operations can be disturbed by faults, and comparison of its engine's state with existing
objects.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx2
from bench_projects import BenchProject
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import KubeConfig
from llmd_base.errors import KitError
from llmd_base.progress import PlainProgress
from llmd_rehearsal import engine_operations, rehearsal
from llmd_rehearsal.engine_project import checkpoint_file, in_oci, journal_file, latest
from llmd_rehearsal.rehearsal import Prepared
from llmd_rehearsal.rehearsal_settings import PluginChoice, RehearsalSettings

Operation = Literal["up", "refresh", "destroy"]
CYCLE: tuple[Operation, ...] = ("up", "refresh", "destroy")
"""Operations of the engine in an order in which each leaves the starting point of the next."""

KEPT = ("CustomResourceDefinition.apiextensions.k8s.io",)
"""Kinds of Kubernetes objects that remain when a stack is destroyed, because other stacks may depend on them; the next
update adopts them.
"""

OPERATION_LIMIT_S = 900.0
NOT_YET_LIMIT_S = 60.0
TOO_MANY_REQUESTS = 429
MANAGER = "pulumi-kubernetes"
"""Prefix of the field managers with which Pulumi's Kubernetes plug-in applies objects."""


@dataclass(frozen=True)
class Blow:
    """Fault that strikes an operation of the engine, `after_s` seconds after its start; `strike` is called with the ID
    of the operation's process.
    """

    after_s: float
    strike: Callable[[int], None]


@dataclass(frozen=True)
class End:
    """Result of an operation of the engine: its error (empty if it succeeded), and its measured duration in wall
    seconds.
    """

    failure: str
    seconds: float
    struck: bool = False
    """True if the fault happened during the operation; False if the operation had already ended."""


@dataclass(frozen=True)
class RehearsedStack:
    """Rehearsed stack whose engine's operations can be disturbed by faults."""

    project: BenchProject
    prepared: Prepared

    def operate(self, operation: Operation, blow: Blow | None = None) -> End:
        """Run an operation of the engine in a separate process, disturb it by the fault `blow` if given, and return the
        result.
        """
        here = [sys.executable, str(Path(__file__)), "--operate", operation, "--project", str(self.project.folder)]
        started_s = time.monotonic()
        with subprocess.Popen(
            [*here, "--stack", self.project.stack], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            errors = errors_of(process, blow.after_s) if blow else None
            struck = blow is not None and errors is None
            if blow is not None and errors is None:
                blow.strike(process.pid)
            if errors is None and (errors := errors_of(process, OPERATION_LIMIT_S)) is None:
                kill(process.pid, "everything")
                process.communicate()
                errors = f"no end within {OPERATION_LIMIT_S:g} s"
        failure = "" if process.returncode == 0 else errors.strip() or f"exit code {process.returncode}"
        return End(failure, time.monotonic() - started_s, struck)

    def differences(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the objects that exist in the cluster or OCI but not in the engine's state, and those in the state
        that don't exist.
        """
        resources = latest(checkpoint_file(self.prepared.state, self.project.stack)).get("resources") or ()
        known = {name for item in resources if (name := _name_in_state(item))}
        listing = [sys.executable, str(Path(__file__)), "--list-objects"]
        environment = {"KUBECONFIG": str(self.prepared.state / "kubeconfig.yaml")}
        listed = self.prepared.cluster.run_inside(listing, env=environment)
        if listed.returncode != 0:
            why = listed.stderr.strip().rpartition("\n")[2]
            raise KitError(f"The cluster's objects can't be listed: {why}", "Is the rehearsal's API server up?")
        there = {*listed.stdout.splitlines(), *map(_oci, in_oci(journal_file(self.prepared.state)))}
        orphans = (name for name in there - known if not name.startswith(KEPT))
        return tuple(sorted(orphans)), tuple(sorted(known - there))


def errors_of(process: subprocess.Popen[str], limit_s: float) -> str | None:
    """Return a process's standard error once it has ended; None if it doesn't end within `limit_s` seconds."""
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=limit_s)[1]
    return None


def kill(pid: int, victim: Literal["engine", "everything"]) -> None:
    """Kill with SIGKILL the engine of a command (`pid`), or all of the command's processes, as in the loss of a
    machine.
    """
    for child in sorted(_family(pid), reverse=True):
        with suppress(ProcessLookupError, FileNotFoundError):
            if victim == "everything" or Path(f"/proc/{child}/comm").read_text().strip() == "pulumi":
                os.kill(child, signal.SIGKILL)


def _family(pid: int) -> set[int]:
    """Return the IDs of a process and all of its descendants."""
    family = {pid}
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            family = family.union(*(_family(int(child)) for child in (thread / "children").read_text().split()))
    return family


def _name_in_state(resource: Mapping[str, Any]) -> str:
    """Return the name of a resource in the state: kind, namespace and name of a Kubernetes object, the OCID of an OCI
    resource; empty for other resources.
    """
    kind = str(resource["type"])
    if kind.startswith("oci:") and resource.get("custom") and not resource.get("external"):
        return _oci(resource["id"])
    outputs: Mapping[str, Any] = resource.get("outputs") or {}
    if not kind.startswith("kubernetes:") or "kind" not in outputs or resource.get("external"):
        return ""
    namespace, _, name = str(resource["id"]).rpartition("/")
    return _name(outputs["apiVersion"], outputs["kind"], namespace, name)


def _name(api_version: str, kind: str, namespace: str, name: str) -> str:
    group = api_version.rpartition("/")[0]
    return f"{kind}{'.' if group else ''}{group} {namespace}/{name}"


def _oci(identifier: str) -> str:
    return f"oci {identifier}"


def list_objects() -> Iterator[str]:
    """Yield the names of the Kubernetes objects that Pulumi's plug-in applied, from the API server of the environment's
    kubeconfig.
    """
    config = KubeConfig.from_env().get()
    if config is None or config.user is None:
        raise KitError("The environment's kubeconfig names no cluster.", "Set KUBECONFIG.")
    verify = verify_cluster(config.cluster, config.user, config.abs_file)
    with httpx2.Client(base_url=config.cluster.server, verify=verify) as client:
        groups = [group["preferredVersion"]["groupVersion"] for group in _get(client, "/apis")["groups"]]
        for path in ["/api/v1", *(f"/apis/{version}" for version in groups)]:
            for resource in _get(client, path)["resources"]:
                if "list" in resource["verbs"] and "/" not in resource["name"]:
                    yield from _applied(client, f"{path}/{resource['name']}", resource["kind"], path)


def _applied(client: httpx2.Client, path: str, kind: str, version: str) -> Iterator[str]:
    for obj in _get(client, path).get("items") or ():
        managers = [str(field.get("manager", "")) for field in obj["metadata"].get("managedFields") or ()]
        if any(manager.startswith(MANAGER) for manager in managers):
            metadata = obj["metadata"]
            yield _name(version.partition("/apis/")[2], kind, metadata.get("namespace", ""), metadata["name"])


def _get(client: httpx2.Client, path: str) -> dict[str, Any]:
    """Return the JSON answer of the API server, with retries while it answers 429 after a CustomResourceDefinition was
    created or deleted.
    """
    answer = client.get(path)
    deadline_s = time.monotonic() + NOT_YET_LIMIT_S
    while answer.status_code == TOO_MANY_REQUESTS and time.monotonic() < deadline_s:
        time.sleep(1)
        answer = client.get(path)
    return answer.raise_for_status().json()


def main() -> None:
    """Run an operation of the Pulumi engine on a rehearsed stack in this process, so that it can be killed, or list the
    objects in the local cluster.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path)
    parser.add_argument("--stack")
    parser.add_argument("--operate", choices=CYCLE)
    parser.add_argument("--list-objects", action="store_true")
    options = parser.parse_args()
    try:
        if options.list_objects:
            for name in list_objects():
                print(name)
        else:
            progress = PlainProgress(sys.stdout)
            prepared = rehearsal.prepare(
                options.project, options.stack, RehearsalSettings(plugin=PluginChoice.STAND_IN), progress
            )
            engine_operations.run_engine(prepared, options.operate, progress, unprotect=options.operate == "destroy")
    except KitError as error:
        print(f"error {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
