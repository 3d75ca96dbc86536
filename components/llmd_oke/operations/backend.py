"""Conditions of an update on its Pulumi state backend: that it has the stack, and that the passphrase of the stack's
secrets is known.

If a requirement isn't met, the user is asked at a terminal; without a terminal, the error names the command to run.
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
    """Functions that ask the user on a terminal: `confirm` asks a yes-no question."""

    confirm: Callable[[str], bool]
    ask_passphrase: Callable[[bool], str]
    """Function that prompts for a passphrase without echo, twice if its argument says that the passphrase is new."""


def require_stack(pulumi: PulumiCli, terminal: Terminal | None = None) -> None:
    """Require that the stack exists in the backend and that the passphrase of its secrets is given.

    Args:
        pulumi: the CLI and the stack.
        terminal: prompts for the creation of a missing stack and for the passphrase; None for no prompts.

    Raises:
        KitError: the CLI isn't logged in, the stack doesn't exist, or the passphrase is missing.
    """
    try:
        deployment: Mapping[str, Any] = pulumi.export()["deployment"] or {}
    except NoStackError as error:
        if terminal is None or not terminal.confirm(f"{error.message} Create it?"):
            raise
        if not pulumi.backend_url().startswith("http"):
            require_passphrase("passphrase", terminal, new=True)
        if pulumi.create_stack():
            raise
        return
    provider: Mapping[str, Any] = deployment.get("secrets_providers") or {}
    require_passphrase(str(provider.get("type", "")), terminal, new=False)


@contextmanager
def signed_in_to_cloud(organization: str, token: str, lifetime: str | None = None) -> Generator[None]:
    """Log the Pulumi CLI in to Pulumi Cloud, or to the instance at `PULUMI_BACKEND_URL`, during the block.

    Args:
        organization: the Pulumi organization.
        token: the CI job's OIDC token for the audience `urn:pulumi:org:ORGANIZATION`.
        lifetime: lifetime of the access token, such as `6h`; Pulumi's default if left out.

    Raises:
        KitError: PATH has no Pulumi CLI, or Pulumi Cloud refuses the token.
    """
    pulumi = pulumi_cli(Path(), "none")
    url = os.environ.get("PULUMI_BACKEND_URL")
    with TemporaryDirectory(prefix="llmd-oke-") as folder:  # mode 0700
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


def require_passphrase(provider: str, terminal: Terminal | None, *, new: bool) -> None:
    """Require that the passphrase of a stack's secrets is given, or ask for it.

    Args:
        provider: type of the provider of secrets; one other than `passphrase` needs none.
        terminal: prompts for the passphrase; None for no prompts.
        new: whether the passphrase is a new one, which is asked for twice.

    Raises:
        KitError: the passphrase is missing and there is no terminal.
    """
    if provider != "passphrase" or {PASSPHRASE, f"{PASSPHRASE}_FILE"} & os.environ.keys():
        return
    if terminal is None:
        raise KitError("The stack's secrets are encrypted with a passphrase, and none is given.", PASSPHRASE_REMEDY)
    os.environ[PASSPHRASE] = terminal.ask_passphrase(new)  # for child processes


@contextmanager
def environment(values: Mapping[str, str | None]) -> Generator[None]:
    """Set environment variables of this process during the block, or unset those whose value is None."""
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
    """Remove the stack's lock that a killed engine left and, in a file backend, its incompletely written files; return
    the CLI's exit code. No other engine may run meanwhile.

    Raises:
        KitError: the CLI isn't logged in to a backend, or the backend doesn't answer.
    """
    scheme, _, folder = pulumi.backend_url().partition("://")
    if scheme == "file":
        remove_unfinished(Path(folder.partition("?")[0]).expanduser() / ".pulumi")
    return pulumi.unlock()


def remove_unfinished(state: Path) -> None:
    """Remove the incomplete files that a killed engine, or one whose disk was full, left in a file backend.

    With such files engines refuse every operation: with an empty lock by `unexpected end of JSON input`, with an empty
    `.attrs` (the optional content type of the file beside it) by `EOF`, both seen with Pulumi 3.250.

    Args:
        state: the directory `.pulumi` of a file backend.
    """
    for file in (*state.rglob("*.attrs"), *(state / "locks").rglob("*.json*")):
        if file.suffix == ".tmp" or not file.stat().st_size:
            file.unlink()
