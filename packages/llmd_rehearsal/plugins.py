"""Choice of the Kubernetes plug-in for a rehearsal's engine: the real one if installed or fetched by the engine, else
the stand-in.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Final
from urllib.parse import urlsplit

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke.config import CreateCluster
from llmd_oke.planning import Plan
from llmd_oke.sdk_modules import plugin_version

from llmd_rehearsal.downloads import NO_DOWNLOADS, architecture, mirror
from llmd_rehearsal.programs import LocalProgram, refusal
from llmd_rehearsal.rehearsal_settings import PluginChoice

EXECUTABLE: Final = "pulumi-resource-kubernetes"
ANSWER_TIMEOUT_S: Final = 20.0
"""Seconds that a Kubernetes plug-in on PATH may take to start and report its version; the real one takes one second."""

SERVER: Final = "https://get.pulumi.com/releases/plugins"
"""Base URL from which Pulumi's engine downloads Pulumi's own plug-ins, for real deployments too."""

_FETCH_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class KubernetesPlugin:
    """Kubernetes plug-in that a rehearsal's engine uses; `path` is the real plug-in's executable, None for the
    stand-in.
    """

    version: str
    path: Path | None = None

    @property
    def is_real(self) -> bool:
        """Tell whether the Kubernetes plug-in is Pulumi's own, and not the stand-in."""
        return self.path is not None

    @property
    def choice(self) -> PluginChoice:
        """Choice (`PluginChoice`) that leads to this plug-in again."""
        return PluginChoice.REAL if self.is_real else PluginChoice.STAND_IN

    def __str__(self) -> str:
        return f"{self.choice} {self.version}"

    def install(self, pulumi_home: Path) -> None:
        """Link the real Kubernetes plug-in into the plug-in folder of a Pulumi home; for the stand-in, remove the real
        one from that folder.
        """
        folder = _folder(pulumi_home, self.version)
        shutil.rmtree(folder, ignore_errors=True)
        if self.path is not None:
            folder.mkdir(parents=True)
            (folder / EXECUTABLE).symlink_to(self.path.resolve())


def check_choice(choice: PluginChoice, plan: Plan) -> None:
    """Refuse the real Kubernetes plug-in for a stack that it can't deploy in a rehearsal.

    Raises:
        KitError: the real plug-in is chosen and the stack installs Helm charts.
    """
    if choice is PluginChoice.REAL and installs_charts(plan):
        raise KitError(
            "The real Kubernetes plug-in downloads the charts of the operators that this stack installs, and a "
            "rehearsal has no way out.",
            "Leave --plugin out: the stand-in has the charts on this machine.",
        )


def choose_plugin(choice: PluginChoice, plan: Plan, fetch: Callable[[str], Path | None]) -> KubernetesPlugin:
    """Return the Kubernetes plug-in for the rehearsal of a plan.

    Args:
        choice: the user's choice.
        plan: the stack's plan.
        fetch: function that fetches the real plug-in of a version and returns its executable; None if it isn't
            available.

    Raises:
        KitError: the real plug-in is chosen and isn't installed or doesn't support the stack; the message has the
            remedy.
    """
    version = plugin_version("pulumi_kubernetes")
    stand_in = KubernetesPlugin(version)
    if choice is PluginChoice.STAND_IN or (choice is PluginChoice.AUTO and installs_charts(plan)):
        return stand_in
    check_choice(choice, plan)
    path = installed(version) or fetch(version)
    if path is None and choice is PluginChoice.REAL:
        raise KitError(
            f"Pulumi's Kubernetes plug-in v{version} is not installed: it is neither {_folder(_home(), version)}, nor "
            f"is {EXECUTABLE} in that version on PATH.",
            f"Install it: pulumi plugin install resource kubernetes v{version}",
        )
    return KubernetesPlugin(version, path)


def installs_charts(plan: Plan) -> bool:
    """Tell whether a stack installs operators from Helm charts."""
    creates = isinstance(plan.cluster, CreateCluster) and plan.layer != "serving"
    return creates and bool(plan.gpu_stack.components)


def installed(version: str) -> Path | None:
    """Return the executable of Pulumi's Kubernetes plug-in in this version, from Pulumi's plug-in folder or PATH; None
    if it isn't installed.
    """
    folder = _folder(_home(), version)
    executable = folder / EXECUTABLE
    is_whole = not folder.with_name(f"{folder.name}.partial").exists()
    if is_whole and os.access(executable, os.X_OK):
        return executable
    on_path = shutil.which(EXECUTABLE)
    return Path(on_path) if on_path and reported_version(Path(on_path)) == version else None


def fetch(version: str, pulumi: LocalProgram, progress: Progress) -> Path | None:
    """Let the engine download Pulumi's Kubernetes plug-in into its own plug-in folder, as for a deployment; return the
    executable, or None if that isn't possible.

    A server that doesn't answer isn't asked again for a day; meanwhile rehearsals use the stand-in.
    """
    if (base := mirror()) == NO_DOWNLOADS:
        return None
    server = base or SERVER
    url = f"{server}/{EXECUTABLE}-v{version}-linux-{architecture()}.tar.gz"

    def run() -> None:
        from llmd_rehearsal import download_client  # noqa: PLC0415 - loads an HTTP client, which few rehearsals need

        download_client.ask_for_address(url)  # fails sooner than the engine, which retries for ten seconds
        progress.step(f"fetching Pulumi's Kubernetes plug-in v{version}")
        _install(pulumi.path, version, server)

    reason = refusal(f"kubernetes-plugin-{version}-{urlsplit(server).hostname}", run, lambda _: True)
    return None if reason else installed(version)


def _install(pulumi: Path, version: str, server: str) -> None:
    command = [str(pulumi), "plugin", "install", "resource", "kubernetes", f"v{version}", "--exact", "--server", server]
    try:
        subprocess.run(
            command,
            env={**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_FETCH_TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise KitError(f"the engine can't fetch it: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise KitError(f"the engine hasn't fetched it within {_FETCH_TIMEOUT_S:.0f} s") from error


def reported_version(executable: Path) -> str | None:
    """Return the version that a plug-in's executable reports, such as `4.30.0`; None if the executable reports no
    version.

    Started without an engine's address, a plug-in waits for an engine to attach, so that its version can be requested
    by gRPC.
    """
    with subprocess.Popen([str(executable)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        limit = Timer(ANSWER_TIMEOUT_S, process.kill)
        limit.start()
        try:
            port = process.stdout.readline().strip() if process.stdout else ""
            return _version_at(port) if port.isdecimal() else None
        finally:
            limit.cancel()
            process.kill()


def _version_at(port: str) -> str | None:
    import grpc  # noqa: PLC0415 - takes half a second to import, and is rarely needed

    from llmd_rehearsal.plugin_protocol import Empty, Stub  # noqa: PLC0415 - it loads grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            info = Stub(channel).GetPluginInfo(Empty(), timeout=ANSWER_TIMEOUT_S, wait_for_ready=True)
        except grpc.RpcError:
            return None
    return info.version.removeprefix("v")


def _home() -> Path:
    return Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")


def _folder(pulumi_home: Path, version: str) -> Path:
    """Return the folder in which Pulumi installs the Kubernetes plug-in in this version."""
    return pulumi_home / "plugins" / f"resource-kubernetes-v{version}"
