"""Helm itself, run against the cluster of a provider instance.

Hooks are left out: they are Jobs of images that a rehearsal has no program for, so they would do nothing.
"""

import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from llmd_oke.rehearsal.kubernetes_plugin.kubeconfig import Access
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal

GRACE_S: Final = 30
"""What a run may take beyond the time that Helm itself was given."""
LOOK_S: Final = 0.2
QUICK_S: Final = 60
"""For commands that only read."""


class HelmFailed(Exception):
    """A run that failed, in Helm's own words."""


@dataclass(frozen=True)
class Metadata:
    """What Helm knows of a release."""

    name: str
    chart: str
    version: str
    app_version: str
    namespace: str
    revision: int
    status: str


@dataclass(frozen=True)
class Helm:
    """Helm with the access of one provider instance. `program` is its path; from PATH if empty."""

    access: Access
    cancelled: threading.Event
    program: str = ""

    def install(self, name: str, namespace: str, chart: Path, values: dict[str, Any], flags: Sequence[str]) -> None:
        """Makes a release. Raises HelmFailed."""
        self._apply("install", name, namespace, chart, values, flags)

    def upgrade(self, name: str, namespace: str, chart: Path, values: dict[str, Any], flags: Sequence[str]) -> None:
        """Makes another revision of a release. Raises HelmFailed."""
        self._apply("upgrade", name, namespace, chart, values, flags)

    def uninstall(self, name: str, namespace: str, timeout_s: int) -> None:
        """Deletes a release, and waits until its objects are gone; none is no error. Raises HelmFailed."""
        flags = ["--wait", "--no-hooks", "--ignore-not-found", f"--timeout={timeout_s}s"]
        self._run(["uninstall", name, "--namespace", namespace, *flags], timeout_s + GRACE_S)

    def metadata(self, name: str, namespace: str) -> Metadata | None:
        """What Helm knows of a release, or None where there is none."""
        try:
            text = self._run(["get", "metadata", name, "--namespace", namespace, "--output", "json"], QUICK_S)
        except HelmFailed as error:
            if "not found" in str(error):
                return None
            raise
        found = json.loads(text)
        return Metadata(
            name=found["name"],
            chart=found["chart"],
            version=found["version"],
            app_version=found.get("appVersion") or "",
            namespace=found["namespace"],
            revision=int(found["revision"]),
            status=found["status"],
        )

    def manifest(self, name: str, namespace: str) -> list[dict[str, Any]]:
        """The objects of a release."""
        text = self._run(["get", "manifest", name, "--namespace", namespace], QUICK_S)
        return [document for document in yaml.safe_load_all(text) if document]

    def _apply(
        self, verb: str, name: str, namespace: str, chart: Path, values: dict[str, Any], flags: Sequence[str]
    ) -> None:
        timeout_s = next(
            (int(flag[len("--timeout=") : -1]) for flag in flags if flag.startswith("--timeout=")), QUICK_S
        )
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(values, file)
            file.flush()
            own = [verb, name, str(chart), "--namespace", namespace, "--values", file.name, "--no-hooks"]
            self._run([*own, *flags], timeout_s + GRACE_S)

    def _run(self, arguments: Sequence[str], limit_s: float) -> str:
        program = self.program or shutil.which("helm")
        if not program:
            raise Refusal("helm is not on PATH, and Helm releases are made with it")
        with tempfile.TemporaryDirectory(prefix="helm-") as home:
            kubeconfig = Path(home) / "kubeconfig"
            kubeconfig.write_text(_kubeconfig(self.access))
            environment = {"HOME": home, "KUBECONFIG": str(kubeconfig), "PATH": "/usr/bin:/bin"}
            process = subprocess.Popen(
                [program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
            )
            return self._finished(process, limit_s)

    def _finished(self, process: "subprocess.Popen[str]", limit_s: float) -> str:
        left_s = limit_s
        while True:
            try:
                output, complaint = process.communicate(timeout=LOOK_S)
                break
            except subprocess.TimeoutExpired:
                left_s -= LOOK_S
                if self.cancelled.is_set() or left_s <= 0:
                    process.kill()
        if process.returncode:
            raise HelmFailed(_reason(complaint) or f"helm ended after {limit_s:g} s or was cancelled")
        return output


def _reason(complaint: str) -> str:
    """Helm's last word, without what it puts in front of it: `Error: UPGRADE FAILED: `."""
    lines = [line for line in complaint.strip().splitlines() if line.startswith("Error:")]
    if not lines:
        return complaint.strip()
    text = complaint[complaint.index(lines[-1]) + len("Error: ") :].strip()
    for prefix in ("INSTALLATION FAILED: ", "UPGRADE FAILED: "):
        text = text.removeprefix(prefix)
    return text


def _kubeconfig(access: Access) -> str:
    context = {"cluster": "cluster", "user": "user"}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": access.cluster}],
            "users": [{"name": "user", "user": access.user}],
            "contexts": [{"name": "context", "context": context}],
            "current-context": "context",
        }
    )
