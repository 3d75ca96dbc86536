"""`llmd-oke state`: backups of a stack's state, their restoration, and moves to another backend."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from llmd_base.errors import KitError

from llmd_oke.cli import console, options
from llmd_oke.cli.recover import DRIFTED
from llmd_oke.cli.up import terminal
from llmd_oke.operations import state_archives, states
from llmd_oke.operations.pulumi_cli import PulumiCli, pulumi_cli
from llmd_oke.operations.state_archives import Manifest, StateArchive
from llmd_oke.operations.states import MoveOptions, Restoration

app = typer.Typer(no_args_is_help=True, help="State of a stack: backed up, restored, moved to another backend.")

ArchiveFile = Annotated[
    Path, typer.Argument(help="Archive of `llmd-oke state backup`.", exists=True, dir_okay=False, show_default=False)
]
Archive = Annotated[
    Path | None,
    typer.Option(
        "--archive",
        help="Where the state of before is kept; `<stack>-state-<time>.tar.gz` if left out.",
        dir_okay=False,
    ),
]


@app.command()
def backup(
    stack: options.Stack,
    project: options.Project = options.HERE,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where it is written; `<stack>-state-<time>.tar.gz` if left out.", dir_okay=False
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Pack a stack's state and stack file into one archive, with checksums and versions.

    Secrets stay encrypted as they are in the backend. An engine that runs is not waited for: its unfinished operations
    are in the archive, and reported.
    """
    archive, file = save(pulumi_cli(project, stack, aside=True), output)
    _show(archive.manifest, file, as_json=as_json)


@app.command()
def check(
    file: ArchiveFile,
    stack: Annotated[
        str | None, typer.Option("--stack", "-s", help="Stack whose state in the backend is compared with it.")
    ] = None,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Check an archive without a change: its checksums, and with --stack how it differs from the backend.

    Ends with 0 if the archive is whole and nothing differs, with 3 if the backend differs, with 1 if it is damaged.
    """
    archive = state_archives.read(file)
    if stack is None:
        _show(archive.manifest, file, as_json=as_json)
        return
    judged = states.judge_restoration(
        pulumi_cli(project, stack, aside=True), archive, overwrite=True, with_stack_file=True
    )
    if as_json:
        console.show_json({**_document(archive.manifest, file), **_difference(judged)})
    else:
        _show(archive.manifest, file, as_json=False)
        _show_difference(judged)
    raise typer.Exit(DRIFTED if judged.needed else 0)


@app.command()
def restore(
    file: ArchiveFile,
    stack: options.Stack,
    project: options.Project = options.HERE,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a state that was written after the archive's.")
    ] = False,
    stack_file: Annotated[
        bool, typer.Option("--stack-file", help="Replace the stack file that is there by the archive's.")
    ] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Put the state of an archive into the backend, and the stack file where there is none.

    A stack that the backend doesn't have is created. A state that is there is backed up first; one that is newer is
    kept unless --overwrite is given. Nothing in OCI or the cluster is changed; `llmd-oke drift` compares them then.
    """
    archive, pulumi = state_archives.read(file), pulumi_cli(project, stack, aside=True)
    judged = states.judge_restoration(pulumi, archive, overwrite=overwrite, with_stack_file=stack_file)
    if not as_json:
        _show_difference(judged)
    saved: Path | None = None
    if judged.needed:
        console.confirm(f"Restore the state of {stack}?", yes=yes, as_json=as_json)
        if judged.present is not None and state_archives.resources(judged.present):
            _, saved = save(pulumi, folder=file.parent)
            console.progress().step(f"the state that was there: {saved}")
        states.restore(pulumi, judged, None if as_json else terminal())
    if as_json:
        console.show_json({**_document(archive.manifest, file), **_difference(judged), "saved": str(saved or "")})
    elif judged.needed:
        console.show_line(f"restored {archive.manifest.resources} resources, as of {archive.manifest.written}")
        console.show_line(f"What OCI and the cluster have by now: llmd-oke drift --stack {stack}")


@app.command()
def move(
    stack: options.Stack,
    to: Annotated[str, typer.Option("--to", help="Backend: the URL that `pulumi login` takes.", show_default=False)],
    project: options.Project = options.HERE,
    secrets_provider: Annotated[
        str | None,
        typer.Option(help="New provider of secrets: `default` (Pulumi Cloud's own) or a key's URL, such as awskms://…"),
    ] = None,
    new_passphrase_file: Annotated[
        Path | None,
        typer.Option(help="File with a new passphrase, which encrypts the secrets from now on.", exists=True),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack in its old backend too.")] = False,
    archive: Archive = None,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Move a stack to another state backend, with its secrets encrypted, and remove it from the old one.

    An archive of the state is written first. Both states, secrets included, are compared in memory before the old one
    is removed. Without options for secrets their provider and key stay.
    """
    pulumi = pulumi_cli(project, stack, aside=True)
    if secrets_provider and new_passphrase_file:
        raise KitError("--secrets-provider and --new-passphrase-file name two providers.", "Give one of them.")
    provider = "passphrase" if new_passphrase_file else secrets_provider
    wanted = MoveOptions(to, provider, new_passphrase_file, keep)
    states.refuse_move(pulumi, wanted)
    console.confirm(f"Move {stack} from {pulumi.backend_url()} to {to}?", yes=yes, as_json=as_json)
    packed, saved = save(pulumi, archive)
    states.move(pulumi, wanted, console.progress(), None if as_json else terminal())
    if as_json:
        console.show_json({**_document(packed.manifest, saved), "backend": to})
        return
    console.show_line(f"moved    {packed.manifest.resources} resources to {to}")
    console.show_line(f"archive  {saved}")
    console.show_line(f"From now on: pulumi login {to}")
    if new_passphrase_file:
        console.show_line(f"Its passphrase is that of {new_passphrase_file}.")


def save(pulumi: PulumiCli, file: Path | None = None, folder: Path = Path()) -> tuple[StateArchive, Path]:
    """Write an archive of a stack's present state; return the archive and its absolute path.

    Args:
        pulumi: the CLI and the stack.
        file: path of the archive; None for `<stack>-state-<time>.tar.gz` in `folder`.
        folder: folder of the archive if `file` is None.

    Raises:
        KitError: the folder doesn't exist, or the state can't be read.
    """
    archive = state_archives.pack(pulumi)
    moment = archive.manifest.made.partition("+")[0].replace("-", "").replace(":", "")
    path = (file or folder / f"{archive.manifest.stack}-state-{moment}Z.tar.gz").resolve()
    if not path.parent.is_dir():
        raise KitError(f"{path.parent} is no folder.", "Name a file in a folder that is there.")
    archive.write(path)
    return archive, path


def _document(manifest: Manifest, file: Path) -> dict[str, object]:
    return {"file": str(file.resolve()), **asdict(manifest)}


def _show(manifest: Manifest, file: Path, *, as_json: bool) -> None:
    if as_json:
        console.show_json(_document(manifest, file))
        return
    rows = {
        "archive": str(file),
        "stack": f"{manifest.project}/{manifest.stack}, of {manifest.backend}",
        "state": f"{manifest.resources} resources, written {manifest.written or 'never'}",
        "secrets": f"encrypted by {manifest.secrets}" if manifest.secrets else "none",
        "made with": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
    }
    for name, text in rows.items():
        console.show_line(f"{name:<10} {text}")
    for pending in manifest.pending:
        console.show_line(f"{'pending':<10} {pending}")


def _difference(judged: Restoration) -> dict[str, object]:
    return {
        "exists": judged.present is not None,
        **asdict(judged.difference),
        "pending_lost": list(judged.lost),
        "writes_stack_file": judged.writes_stack_file,
    }


def _show_difference(judged: Restoration) -> None:
    if judged.present is None:
        console.show_line("The backend has no such stack.")
    elif not judged.difference:
        console.show_line("The backend has the same state.")
    elif judged.difference.newer:
        console.show_line("The backend's state is newer than the archive's.")
    if judged.present is not None:
        for line in judged.difference.lines():
            console.show_line(line)
    for pending in judged.lost:
        console.show_line(f"unfinished, and not restored: {pending}")
    if judged.lost:
        console.show_line("`llmd-oke recover` lists what such operations left in OCI.")
