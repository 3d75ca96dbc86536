"""`llmd-oke kv-path`: how fast KV cache goes from node to node, by RDMA or not."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from llmd_bench.files import make_folder, write_whole
from llmd_bench.history import stack_folder
from llmd_oke import planning
from llmd_oke.catalogue.benchmarks import kv_path as facts
from llmd_oke.cli import console, options
from llmd_oke.cli.tables import FittingTable
from llmd_oke.planning import ModelPlan, Plan
from llmd_pods.errors import KitError
from llmd_pods.kv_path import KvPath
from llmd_pods.kv_path import as_json as path_document
from rich.markup import escape
from rich.table import Table

from llmd_tuner.cli.bench import as_yaml, choose_model

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
    from llmd_tuner.experiments.deployed import kv_path as paths  # noqa: PLC0415 - loads Pulumi, --help does without

    if nodes and servers:
        raise KitError("--nodes and --servers exclude each other.", "Give one of them, or none.")
    plan = planning.plan_stack_file(project, stack)
    model = choose_model(plan.models, name, "--name")
    pairs = paths.server_pairs(plan, model) if servers else [_pair(text) for text in nodes or []] or [()]
    if dry_run:
        manifests = paths.manifests(plan, model, pairs[0])
        typer.echo(json.dumps(manifests, indent=2) if as_json else as_yaml(manifests))
        return
    console.errors().print(f"[yellow]{NOT_TRIED}[/]", soft_wrap=True)
    file = _file(reports or project / "reports", stack)
    results = _stored(paths.measure(plan, model, pairs, console.progress()), plan, model, file)
    if as_json:
        typer.echo(json.dumps(_document(plan, model, results), indent=2))
    else:
        _show(plan, results)
        console.output().print(f"report  {escape(str(file))}", soft_wrap=True)
    if any(path.missed for path in results):
        raise typer.Exit(1)


def _stored(paths: Iterable[KvPath], plan: Plan, model: ModelPlan, file: Path) -> list[KvPath]:
    """All paths, each written to the file as soon as it is measured; an error says where those before it are."""
    measured: list[KvPath] = []
    try:
        for path in paths:
            measured.append(path)
            write_whole(file, json.dumps(_document(plan, model, measured), indent=2) + "\n")
    except KitError as error:
        before = f"The paths that were measured before are in {file}." if measured else None
        raise KitError(error.message, "\n".join(filter(None, (error.remedy, before))) or None) from error
    return measured


def _pair(text: str) -> tuple[str, str]:
    names = tuple(name.strip() for name in text.split(","))
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise KitError(f"{text!r} is no pair of nodes.", "--nodes A,B")
    return names[0], names[1]


def _file(reports: Path, stack: str) -> Path:
    folder = reports / stack_folder(stack) / "kv-path"
    make_folder(folder)
    return folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"


def _document(plan: Plan, model: ModelPlan, paths: Sequence[KvPath]) -> dict[str, object]:
    shape = plan.pools[0].shape
    published = facts().rccl.get(shape.name)
    return {
        "model": model.model.name,
        "image": plan.release.vllm.image.reference,
        "shape": shape.name,
        "port_gb_per_s": shape.rdma.port_gbit_per_s / 8,
        "rccl_published": published.model_dump() if published else None,
        "paths": [path_document(path) for path in paths],
    }


def _show(plan: Plan, paths: Sequence[KvPath]) -> None:
    output = console.output()
    shape = plan.pools[0].shape
    port = shape.rdma.port_gbit_per_s / 8
    for path in paths:
        output.print(f"\n[bold]{escape(path.prefill_node)} to {escape(path.decode_node)}[/]  {escape(path.verdict)}")
        output.print(FittingTable(_table(path, port)))
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


def _table(path: KvPath, port_gb_per_s: float) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("prompt", "pieces", "KiB each", "ms", "GB/s (measured)", "least", "of line rate"):
        table.add_column(column, justify="right")
    for figure in path.figures:
        share = f"{figure.gb_per_s / port_gb_per_s:.0%}"
        sizes = (str(figure.tokens), str(figure.descriptors), f"{figure.descriptor_bytes / 1024:,.0f}")
        rates = (f"{figure.milliseconds:,.2f}", f"{figure.gb_per_s:.2f}", f"{figure.least_gb_per_s:.2f}")
        table.add_row(*sizes, *rates, share)
    return table
