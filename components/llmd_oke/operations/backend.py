"""What an update needs of its state backend: the stack itself, and the passphrase of its secrets.

Each lack is met with the command that ends it, or, where somebody sits at a terminal, with a question.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmd_pods.errors import KitError

from llmd_oke.operations.pulumi_cli import NoStackError, PulumiCli

PASSPHRASE = "PULUMI_CONFIG_PASSPHRASE"  # noqa: S105 - the name of a variable
PASSPHRASE_REMEDY = f"Set {PASSPHRASE}_FILE to a file with it, or {PASSPHRASE}."


@dataclass(frozen=True)
class Terminal:
    """Somebody who can be asked."""

    confirm: Callable[[str], bool]
    ask_passphrase: Callable[[bool], str]
    """Asks without showing what is typed, twice if it is a new one."""


def require_stack(pulumi: PulumiCli, terminal: Terminal | None = None) -> None:
    """Has the stack ready to be previewed: there, and its secrets readable.

    Args:
        pulumi: the CLI and the stack.
        terminal: who is asked whether a missing stack is created, and for a passphrase; None asks nobody.

    Raises:
        KitError: nobody is signed in, or something is missing; says what, and the command that ends it.
    """
    try:
        deployment: Mapping[str, Any] = pulumi.export()["deployment"] or {}
    except NoStackError as error:
        if terminal is None or not terminal.confirm(f"{error.message} Create it?"):
            raise
        if not pulumi.backend_url().startswith("http"):
            _require_passphrase("passphrase", terminal, new=True)
        if pulumi.create_stack():
            raise
        return
    provider: Mapping[str, Any] = deployment.get("secrets_providers") or {}
    _require_passphrase(str(provider.get("type", "")), terminal, new=False)


def unlock(pulumi: PulumiCli) -> int:
    """Takes away the lock of an engine that was killed, and from a backend of files what it did not write to its end.

    No other engine may run meanwhile. The answer is the CLI's exit code.

    Raises:
        KitError: nobody is signed in, or the backend doesn't answer.
    """
    scheme, _, folder = pulumi.backend_url().partition("://")
    if scheme == "file":
        remove_unfinished(Path(folder.partition("?")[0]).expanduser() / ".pulumi")
    return pulumi.unlock()


def remove_unfinished(state: Path) -> None:
    """Removes what an engine that was killed, or whose disk was full, did not write to its end.

    Engines can't read it: an empty lock has them refuse every operation with `unexpected end of JSON input`, an empty
    `.attrs` (the content type of the file beside it, which need not be there) with `EOF`, both seen with Pulumi 3.250.

    Args:
        state: the folder `.pulumi` of a backend of files.
    """
    for file in (*state.rglob("*.attrs"), *(state / "locks").rglob("*.json*")):
        if file.suffix == ".tmp" or not file.stat().st_size:
            file.unlink()


def _require_passphrase(provider: str, terminal: Terminal | None, *, new: bool) -> None:
    if provider != "passphrase" or {PASSPHRASE, f"{PASSPHRASE}_FILE"} & os.environ.keys():
        return
    if terminal is None:
        raise KitError("The stack's secrets are encrypted with a passphrase, and none is given.", PASSPHRASE_REMEDY)
    os.environ[PASSPHRASE] = terminal.ask_passphrase(new)  # for the programs that this one starts
