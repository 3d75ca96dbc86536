"""The namespaces of a world: made with `unshare`, entered with `nsenter`, furnished by the world's first process.

A world has a network, a mount table and process numbers of its own, and without root a user namespace too. All end
with its first process: the kernel then kills whatever else runs there and drops the mounts and links.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from llmd_oke.errors import KitError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a world looks programs up."""

BRIDGE_MAC = "02:00:00:00:00:01"
"""A bridge that isn't given one has the lowest of its ports' addresses, and another when that pod goes: other pods then
send to the old one, and nothing of theirs arrives until they ask again, up to half a minute later."""

_KEPT_VARIABLES = ("LANG", "LC_ALL", "PYTHONPATH", "TZ")
_REMEDY = (
    "run it as root, or allow unprivileged user namespaces: `sudo sysctl -w user.max_user_namespaces=15000`, on Debian "
    "also `kernel.unprivileged_userns_clone=1`, on Ubuntu 23.10 and later "
    "`kernel.apparmor_restrict_unprivileged_userns=0`; in a container, run that with `--privileged`"
)


def environment(home: Path) -> dict[str, str]:
    """The environment of every process in a world: nothing in it leads to a cloud, a cluster or a proxy."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {"LANG": "C.UTF-8", **kept, "PATH": PATH, "HOME": str(home), "PYTHONUNBUFFERED": "1"}


def create_command(argv: Sequence[str], *, user_namespace: bool) -> list[str]:
    """The command that runs `argv` as the first process of new namespaces, and kills it when it is itself killed."""
    user = ["--user", "--map-root-user"] if user_namespace else []
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--", *argv]


def enter_command(pid: int, argv: Sequence[str], folder: Path, *, user_namespace: bool) -> list[str]:
    """The command that runs `argv` in the namespaces of the process `pid`, in `folder`."""
    user = ["--user", "--preserve-credentials"] if user_namespace else []
    return ["nsenter", "--target", str(pid), *user, "--net", "--mount", "--pid", "--", "env", "-C", str(folder), *argv]


def furnish(bridge: str, address: str, nameserver: str, state: Path) -> None:
    """Give the new namespaces their own /proc and /run, a network and a resolver. Only for a world's first process.

    The private /run hides the host's sockets (container engines, D-Bus) and takes the pods' /run/netns.

    Raises KitError with what the kernel refused.
    """
    resolver = _resolver_target()
    _run("mount", "-t", "proc", "proc", "/proc")
    _run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
    Path("/run/netns").mkdir()
    _use_nameserver(nameserver, resolver, state)
    _add_network(bridge, address)


def _resolver_target() -> Path:
    configuration = Path("/etc/resolv.conf")
    target = configuration.resolve()
    if not target.is_file():
        remedy = "create it (it may be empty): a world puts its own in its place"
        raise KitError("/etc/resolv.conf does not exist", remedy)
    return target


def _use_nameserver(nameserver: str, target: Path, state: Path) -> None:
    own = state / "resolv.conf"
    own.write_text(f"nameserver {nameserver}\noptions timeout:2 attempts:2\n")
    if target.is_relative_to("/run"):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _run("mount", "--bind", str(own), str(target))


def _add_network(bridge: str, address: str) -> None:
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", bridge, "address", BRIDGE_MAC, "type", "bridge")
    _run("ip", "address", "add", address, "dev", bridge)
    _run("ip", "link", "set", bridge, "up")


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise KitError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}", _REMEDY)


def refusal(output: str) -> KitError:
    """The error for namespaces that the kernel would not make; `output` is what `unshare` said."""
    return KitError(f"this machine does not allow the rehearsal its own namespaces: {output.strip()}", _REMEDY)
