"""`llmd-oke render`: a stack's Kubernetes objects as YAML files, for GitOps."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from llmd_base.errors import KitError
from llmd_base.records import document

from llmd_oke.cli import console, options

if TYPE_CHECKING:  # they load Pulumi, which `--help` does without
    from llmd_oke.gitops.manifests import FolderChanges
    from llmd_oke.gitops.rendering import Rendering

STREAM = "-"

Outputs = Annotated[
    Path | None,
    typer.Option(
        "--outputs",
        help="Outputs of the stack that made the cluster (`clusterStack`): `pulumi stack output --json` of it.",
        dir_okay=False,
        exists=True,
    ),
]


def render(
    stack: options.Stack,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder for the files; `-` for one stream on standard output.")
    ],
    project: options.Project = options.HERE,
    argo_cd: Annotated[
        bool, typer.Option("--argo-cd", help="Give each object its sync wave, and make an Application of each chart.")
    ] = False,
    outputs: Outputs = None,
    as_json: options.Json = False,
) -> None:
    """Write the objects that a stack deploys into its cluster as YAML, in the order of `kubectl apply`, without the
    Pulumi engine and without a cluster. Secrets are not written; the commands that create them are shown.
    """
    from llmd_oke.gitops import manifests, rendering  # noqa: PLC0415 - they load Pulumi

    if output == STREAM and as_json:
        raise KitError("A stream and --json would both be on standard output.", "Give --output a folder.")
    rendered = rendering.render(project, stack, rendering.read_outputs(outputs) if outputs else None)
    replaced: tuple[str, ...] = ()
    if output == STREAM:
        typer.echo(manifests.stream(rendered, argo_cd=argo_cd), nl=False)
        changes = None
    else:
        replaced = manifests.changed_pools(Path(output), rendered)
        changes = manifests.write_folder(Path(output), manifests.files(rendered, argo_cd=argo_cd))
    if as_json:
        console.show_json(_document(rendered, output, changes, replaced, argo_cd=argo_cd))
        return
    _show(rendered, output, changes, replaced, argo_cd=argo_cd)


def _document(
    rendered: "Rendering", output: str, changes: "FolderChanges | None", replaced: Sequence[str], *, argo_cd: bool
) -> dict[str, Any]:
    """Return the rendering as plain data. `replaced` are the units whose servers this update replaces in place."""
    from llmd_oke.gitops.manifests import FolderChanges, helm_command  # noqa: PLC0415

    charts = rendered.charts if not argo_cd else ()
    return document(
        "stack output objects waves files secrets charts left_out updates",
        rendered,
        output=output,
        objects=len(rendered.objects),
        files=document("written unchanged removed", changes or FolderChanges()),
        secrets=[
            document("namespace name key", secret, command=secret.command(rendered.stack))
            for secret in rendered.secrets
        ],
        charts=[
            document("name", chart, before_wave=chart.wave + 1, command=helm_command(chart, output)) for chart in charts
        ],
        left_out=[document("name reason", item) for item in rendered.left_out],
        updates=[
            document("model way note", item, replaced_now=[unit for unit in item.units if unit in replaced])
            for item in rendered.updates
        ],
    )


def _show(
    rendered: "Rendering", output: str, changes: "FolderChanges | None", replaced: Sequence[str], *, argo_cd: bool
) -> None:
    """Show the written files and the remaining steps, on standard error, since a stream uses standard output."""
    document = _document(rendered, output, changes, replaced, argo_cd=argo_cd)
    lines = [f"{document['objects']} objects of {rendered.stack} in {document['waves']} waves"]
    if changes:
        lines += [
            f"{output}: {len(changes.written)} files written, {len(changes.unchanged)} unchanged, "
            f"{len(changes.removed)} removed"
        ]
    lines += [
        f"Secret {item['name']} is not written. Create it after its namespace:\n  {item['command']}"
        for item in document["secrets"]
    ]
    lines += [
        f"Chart {item['name']} comes before wave {item['before_wave']}:\n  {item['command']}"
        for item in document["charts"]
    ]
    lines += [f"Not rendered: {item['name']}: {item['reason']}" for item in document["left_out"]]
    lines += [
        f"This update replaces the servers of {', '.join(item['replaced_now'])}. {item['model']}: {item['note']}"
        if item["replaced_now"]
        else f"Later updates of {item['model']}: {item['note']}"
        for item in document["updates"]
        if item["replaced_now"] or item["way"] in {"outage", "one by one"}
    ]
    for line in lines:
        console.tell(line)
