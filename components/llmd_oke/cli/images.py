"""`llmd-oke images`: the container images of a stack, and the lock of their digests."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.errors import KitError
from llmd_base.records import document
from pydantic import ValidationError
from rich.table import Table

from llmd_oke.catalogue.container_images import lock
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.cli import console, options
from llmd_oke.cli.tables import FittingTable
from llmd_oke.config.stack import RegistryMirrorConfig
from llmd_oke.config.yaml_files import difference, write_whole
from llmd_oke.planning import plan_stack_file
from llmd_oke.planning.container_images import (
    UsedImage,
    copies,
    images_of,
    not_mirrored,
    tag_only_sentence,
)
from llmd_oke.planning.copy_lists import CopyForm, as_copy, copy_text

app = typer.Typer(no_args_is_help=True, help="Container images: what a stack pulls, and the lock of their digests.")

Check = Annotated[
    bool,
    typer.Option("--check", help="Write nothing; end with 1 where the lock isn't what the registries say."),
]


@app.command("list")
def list_images(stack: options.Stack, project: options.Project = options.HERE, as_json: options.Json = False) -> None:
    """List the images that an update of a stack pulls, with their digests and the digests' sources."""
    plan = plan_stack_file(project, stack)
    images = images_of(plan)
    if as_json:
        listed = [{**as_plain(used), "pulled": plan.pulled(used.image).pinned} for used in images]
        console.show_json({"stack": stack, "images": listed})
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("image", "digest", "runs as", "digest from"):
        table.add_column(column, overflow="fold")
    for used in images:
        known = lock().images.get(used.image.reference)
        if known is None:
            origin = "the stack file" if used.image.digest else "not in the lock"
        else:
            origin = (known.source if used.image.digest else known.reason) or ""
        table.add_row(used.image.reference, used.image.digest or "tag alone", used.used_by, origin)
    console.output().print(FittingTable(table))
    if plan.registry_mirror is not None:
        console.output().print(f"\ncopies of them are pulled from {plan.registry_mirror.prefix}", markup=False)
    if sentence := tag_only_sentence(images):
        console.output().print(f"\n{sentence}", markup=False)


@app.command("copy-list")
def copy_list(
    stack: options.Stack,
    project: options.Project = options.HERE,
    mirror: Annotated[
        str | None,
        typer.Option("--mirror", help="Private registry and path in it; the stack file's registryMirror if left out."),
    ] = None,
    form: Annotated[
        CopyForm, typer.Option("--format", help="`plain`, shell commands of `crane`, or a file for `skopeo sync`.")
    ] = CopyForm.PLAIN,
    as_json: options.Json = False,
) -> None:
    """List the images to copy into a private registry before a stack pulls from it: each source with its digest, and
    its destination. Images that a private registry can't provide are listed on standard error.
    """
    plan = plan_stack_file(project, stack)
    destination = plan.registry_mirror
    if mirror is not None:
        try:
            destination = MirrorRegistry(RegistryMirrorConfig(prefix=mirror).prefix)
        except ValidationError as error:
            remedy = "A registry and a path in it, without https://, such as iad.ocir.io/namespace/mirror."
            raise KitError(f"--mirror {mirror} is no private registry.", remedy) from error
    if destination is None:
        remedy = "Say registryMirror in the stack file, or --mirror, such as iad.ocir.io/namespace/mirror."
        raise KitError(f"Stack {stack} has no private registry.", remedy)
    wanted, left_out = copies(plan, destination), list(not_mirrored(plan))
    if as_json:
        document = {"stack": stack, "prefix": destination.prefix, "copies": [as_copy(copy) for copy in wanted]}
        console.show_json({**document, "not_mirrored": left_out})
        return
    typer.echo(copy_text(wanted, destination.prefix, form))
    for text in left_out:
        console.tell(text)


@app.command("sbom")
def sbom(
    stack: options.Stack,
    project: options.Project = options.HERE,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File; standard output if left out.")] = None,
) -> None:
    """Write a bill of materials in CycloneDX 1.6 (JSON): images and charts with digests, models with commits, node
    images, OKE's add-ons, plug-ins and the Python packages of the kit. The content of images is not listed.
    """
    from llmd_oke.operations.sbom import bill_of_materials  # noqa: PLC0415 - other commands need no Pulumi

    bill = bill_of_materials(plan_stack_file(project, stack), stack, datetime.now(UTC))
    text = json.dumps(bill, indent=2)
    if output is None:
        typer.echo(text)
    else:
        write_whole(output, f"{text}\n")


@app.command("verify")
def verify(stack: options.Stack, project: options.Project = options.HERE, as_json: options.Json = False) -> None:
    """Check that images and charts of a stack are signed by their publishers, at the publishers' registries. Publishers
    that don't sign are listed. Ends with 1 if a signature is missing or of another signer.
    """
    from llmd_oke.cli.preflight import print_findings  # noqa: PLC0415 - other commands ask no registry
    from llmd_oke.operations.findings import exit_code  # noqa: PLC0415
    from llmd_oke.operations.signatures import signature_findings  # noqa: PLC0415

    findings = signature_findings(images_of(plan_stack_file(project, stack)), console.progress())
    print_findings(stack, findings, as_json=as_json)
    raise typer.Exit(exit_code(findings))


@app.command("update")
def update(
    project: options.Project = options.HERE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference and write nothing.")] = False,
    check: Check = False,
    moved: Annotated[
        bool, typer.Option("--moved", help="Take the new digest of a tag that names another image than it did.")
    ] = False,
) -> None:
    """Query the registries of all images that the kit deploys for digests, and write the lock. A project has a lock of
    its own, `values/container-images/lock.yaml`, for images that the kit's lock lacks; without a project, and in a
    checkout of the kit, the kit's lock is written.

    Comments and order of the file stay. If a tag has another digest than in the lock, the change is shown, and written
    only with `--moved`. Ends with 1 if there was such a tag or a registry didn't answer; other digests are written all
    the same.
    """
    from llmd_oke.operations.registries import registry_news  # noqa: PLC0415 - other commands ask no registry

    path, before, new = registry_news(project, console.progress(), take_moved=moved)
    changes = difference(before, new.text, str(path))
    console.show_line(changes or "nothing changes")
    for reference, (known, now) in new.moved.items():
        console.tell(f"{reference} is {now} now, and was {known}: take it with --moved if that is meant to be")
    for reference, reason in new.unanswered.items():
        console.tell(f"{reference}: {reason}")
    if changes and not (dry_run or check):
        write_whole(path, new.text)
    if new.moved or new.unanswered or (check and changes):
        raise typer.Exit(1)


def as_plain(used: UsedImage) -> dict[str, Any]:
    """Return an image that a stack uses as plain data for JSON."""
    known = lock().images.get(used.image.reference)
    return document(
        "image tag digest digest_source no_digest_because used_by path",
        used,
        used.image,
        image=used.image.reference,
        digest_source=known.source if known else None,
        no_digest_because=known.reason if known else None,
    )
