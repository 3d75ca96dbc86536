"""`llmd-oke kv-path`: how fast does KV cache go from node to node, and does RDMA carry it?"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from llmd_oke import planning
from llmd_oke.catalogue.bench_jobs import kv_path as facts
from llmd_oke.cli import bench_target, console, options
from llmd_oke.cli.manifests import as_yaml
from llmd_oke.cli.tables import Fitting
from llmd_oke.errors import KitError
from llmd_oke.results.files import make_folder, write_whole
from llmd_oke.results.history import stack_folder

if TYPE_CHECKING:
    from llmd_oke.bench.kv_path.result import KvPath
    from llmd_oke.planning import ModelPlan, Plan

Name = Annotated[str | None, typer.Option("--name", help="Whose cache, where the stack has several models.")]
Nodes = Annotated[
    list[str] | None, typer.Option("--nodes", help="Two nodes, with a comma; several times. Any two if left out.")
]
Servers = Annotated[
    bool, typer.Option("--servers", help="All pairs of nodes between which the model's servers hand cache over.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the manifests of the first pair and create nothing.")]

NOT_TRIED = "This measurement has not been run on hardware yet: its pods follow NIXL's published API."


def kv_path(
    stack: options.Stack,
    project: options.Project = options.HERE,
    name: Name = None,
    nodes: Nodes = None,
    servers: Servers = False,
    dry_run: DryRun = False,
    reports: options.Reports = None,
    as_json: options.Json = False,
) -> None:
    """Read KV cache from one node to another through NIXL, and compare with what the nodes' RDMA ports counted.

    A Job of two pods for each pair of nodes; each needs a free GPU and a free RDMA virtual function. **Not run on
    hardware yet.** Ends with exit code 1 where RDMA ports did not carry the cache.
    """
    from llmd_oke.experiments.deployed import kv_path as paths  # noqa: PLC0415 - not needed by other commands

    if nodes and servers:
        raise KitError("--nodes and --servers exclude each other.", "Give one of them, or none.")
    plan = planning.plan_stack_file(project, stack)
    model = bench_target.choose(plan.models, name, "--name")
    pairs = paths.server_pairs(plan, model) if servers else [_pair(text) for text in nodes or []] or [()]
    if dry_run:
        typer.echo(_manifests(paths.manifests(plan, model, pairs[0]), as_json=as_json))
        return
    console.errors().print(f"[yellow]{NOT_TRIED}[/]", soft_wrap=True)
    file = _file(reports or project / "reports", stack)
    found = _kept(paths.measure(plan, model, pairs, console.progress()), plan, model, file)
    if as_json:
        typer.echo(json.dumps(_document(plan, model, found), indent=2))
    else:
        _show(plan, found)
        console.output().print(f"report  {escape(str(file))}", soft_wrap=True)
    if any(path.missed for path in found):
        raise typer.Exit(1)


def _manifests(manifests: Sequence[object], *, as_json: bool) -> str:
    if as_json:
        return json.dumps(manifests, indent=2)
    return as_yaml(manifests)


def _kept(paths: "Iterable[KvPath]", plan: "Plan", model: "ModelPlan", file: Path) -> "list[KvPath]":
    """All paths, each kept in the file as soon as it is there; an error says where those before it are."""
    found: list[KvPath] = []
    try:
        for path in paths:
            found.append(path)
            write_whole(file, json.dumps(_document(plan, model, found), indent=2) + "\n")
    except KitError as error:
        before = f"The paths that were measured before are in {file}." if found else None
        raise KitError(error.message, "\n".join(filter(None, (error.remedy, before))) or None) from error
    return found


def _pair(text: str) -> tuple[str, str]:
    names = tuple(name.strip() for name in text.split(","))
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise KitError(f"{text!r} is no pair of nodes.", "--nodes A,B")
    return names[0], names[1]


def _file(reports: Path, stack: str) -> Path:
    folder = reports / stack_folder(stack) / "kv-path"
    make_folder(folder)
    return folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"


def _document(plan: "Plan", model: "ModelPlan", paths: "Sequence[KvPath]") -> dict[str, object]:
    from llmd_oke.bench.kv_path.result import as_json  # noqa: PLC0415

    shape = plan.pools[0].shape
    published = facts().rccl.get(shape.name)
    return {
        "model": model.model.name,
        "image": plan.release.vllm.image.reference,
        "shape": shape.name,
        "port_gb_per_s": shape.rdma.port_gbit_per_s / 8,
        "rccl_published": published.model_dump() if published else None,
        "paths": [as_json(path) for path in paths],
    }


def _show(plan: "Plan", paths: "Sequence[KvPath]") -> None:
    output = console.output()
    shape = plan.pools[0].shape
    port = shape.rdma.port_gbit_per_s / 8
    for path in paths:
        output.print(f"\n[bold]{escape(path.prefill_node)} to {escape(path.decode_node)}[/]  {escape(path.verdict)}")
        output.print(Fitting(_table(path, port)))
        output.print(f"[dim]first read, with the connection: {path.first_ms:,.0f} ms; {escape(path.package)}[/]")
        for name, value in path.trouble.items():
            output.print(f"[yellow]{escape(name)} +{value}[/]", soft_wrap=True)
    published = facts().rccl.get(shape.name)
    if published:
        per_port = published.busbw_gb_per_s / published.ports
        output.print(
            f"\nbeside it: {per_port:.1f} GB/s for each port in a published RCCL all-reduce between two nodes "
            f"({published.busbw_gb_per_s:g} GB/s over {published.ports}), {port:g} GB/s line rate (bound)",
            soft_wrap=True,
        )


def _table(path: "KvPath", port_gb_per_s: float) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("prompt", "pieces", "KiB each", "ms", "GB/s (measured)", "least", "of line rate"):
        table.add_column(column, justify="right")
    for each in path.figures:
        share = f"{each.gb_per_s / port_gb_per_s:.0%}"
        sizes = (str(each.tokens), str(each.descriptors), f"{each.descriptor_bytes / 1024:,.0f}")
        rates = (f"{each.milliseconds:,.2f}", f"{each.gb_per_s:.2f}", f"{each.least_gb_per_s:.2f}")
        table.add_row(*sizes, *rates, share)
    return table
