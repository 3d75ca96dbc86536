"""Requirements of an update on its state backend: the stack itself, and the passphrase of its secrets.

Each lack is met with the command that ends it, or, where somebody sits at a terminal, with a question.
"""

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llmd_base.errors import KitError

from llmd_oke.operations.pulumi_cli import NoStackError, PulumiCli, pulumi_cli

PASSPHRASE = "PULUMI_CONFIG_PASSPHRASE"  # noqa: S105 - the name of a variable
PASSPHRASE_REMEDY = f"Set {PASSPHRASE}_FILE to a file with it, or {PASSPHRASE}."


@dataclass(frozen=True)
class Terminal:
    """Somebody who can be asked."""

    confirm: Callable[[str], bool]
    ask_passphrase: Callable[[bool], str]
    """Asks without showing what is typed, twice if it is a new one."""


def require_stack(pulumi: PulumiCli, terminal: Terminal | None = None) -> None:
    """Make sure that a preview can begin: that the stack is there, and its secrets readable.

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


@contextmanager
def signed_in_to_cloud(organization: str, token: str, lifetime: str | None = None) -> Generator[None]:
    """Sign the Pulumi CLI in to Pulumi Cloud, or to the one at `PULUMI_BACKEND_URL`, by a job's own token for
    `cloud_audience`. The sign-in goes with the block; `lifetime` (`6h`) is Pulumi's default if None.

    Raises:
        KitError: there is no Pulumi CLI, or Pulumi Cloud refuses the token.
    """
    pulumi = pulumi_cli(Path(), "none")
    url = os.environ.get("PULUMI_BACKEND_URL")
    with TemporaryDirectory(prefix="llmd-oke-") as folder:  # for its owner alone
        own = {"PULUMI_CREDENTIALS_PATH": folder, "PULUMI_ACCESS_TOKEN": None}
        with environment(own):
            file = Path(folder) / "job-token"
            file.write_text(token)
            words = ["login", "--non-interactive", "--oidc-org", organization, "--oidc-token", f"file://{file}"]
            words += ["--oidc-expiration", lifetime] if lifetime else []
            ended = pulumi.run([pulumi.program, *words, *([url] if url else [])], True)
            file.unlink()
            if ended.status:
                reason = (ended.errors or ended.output).strip()
                remedy = (
                    "The organization's settings have a list of issuers that it trusts, with what their tokens say."
                )
                raise KitError(f"Pulumi Cloud doesn't take the job's token:\n{reason}", remedy)
            yield


def cloud_audience(organization: str) -> str:
    """Return the audience of a job's token for Pulumi Cloud (pulumi.com, OIDC issuers)."""
    return f"urn:pulumi:org:{organization}"


@contextmanager
def environment(values: Mapping[str, str | None]) -> Generator[None]:
    """Sets variables of this process, or takes those away that are None, until the block ends."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def unlock(pulumi: PulumiCli) -> int:
    """Take away the lock of an engine that was killed, and from a backend of files what it did not write to its end.

    No other engine may run meanwhile. The answer is the CLI's exit code.

    Raises:
        KitError: nobody is signed in, or the backend doesn't answer.
    """
    scheme, _, folder = pulumi.backend_url().partition("://")
    if scheme == "file":
        remove_unfinished(Path(folder.partition("?")[0]).expanduser() / ".pulumi")
    return pulumi.unlock()


def remove_unfinished(state: Path) -> None:
    """Remove what an engine that was killed, or whose disk was full, did not write to its end.

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
