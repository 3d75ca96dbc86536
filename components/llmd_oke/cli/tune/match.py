"""`llmd-oke tune match`: the published matching of prefill and decode benchmarks."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from llmd_oke.cli import console, options
from llmd_oke.cli.tables import Fitting
from llmd_oke.cli.tune import fit, import_rows, inputs
from llmd_oke.tuning.measurements.matching import Match, Settings, matches
from llmd_oke.tuning.search import asking
from llmd_oke.tuning.servers import workload as workloads

PublishedGpu = Annotated[str, typer.Option("--gpu", help="GPU of the published measurements.")]
Replicas = Annotated[int, typer.Option("--decode-replicas", help="Decode servers of a unit.", min=1, max=64)]
Share = Annotated[float, typer.Option("--prefill-share", help="Share of prefill's rate to use.", min=0.1, max=1.0)]


def match(
    rows: fit.RowFiles = None,
    workload: inputs.WorkloadText = None,
    model: inputs.ModelName = None,
    gpu: PublishedGpu = "MI300X",
    published: fit.Published = False,
    decode_replicas: Replicas = 1,
    prefill_share: Share = 1.0,
    as_json: options.Json = False,
) -> None:
    """For each decode measurement the fewest prefill GPUs that keep up with it, as the published method has it."""
    product = asking.known_gpu(gpu).gpu.product if published else None
    inspection = import_rows.inspected(fit.rows_of(rows, model, product))
    import_rows.show_findings(inspection)
    asked = workloads.parse(workload or inputs.DEFAULT_WORKLOAD)
    settings = Settings(asked.input_tokens, asked.output_tokens, decode_replicas, prefill_share)
    found = matches(inspection.accepted, settings)
    if as_json:
        typer.echo(json.dumps([_plain(each) for each in found], indent=2))
    else:
        console.output().print(Fitting(_table(found)))


def _plain(each: Match) -> dict[str, object]:
    derived = {"topology": each.topology, "gpus": each.gpus, "tpsu": each.tpsu, "tpsg": each.tpsg}
    return {**asdict(each), **derived}


def _table(found: list[Match]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    columns = ("topology", "concurrency", "decode tok/s", "prompt tok/s", "prefill GPUs", "GPUs", "TPSU", "TPSG")
    for column in columns:
        table.add_column(column, justify="left" if column == "topology" else "right", no_wrap=True)
    for each in found:
        table.add_row(
            each.topology,
            f"{each.decode.concurrency:g}",
            f"{each.decode.tokens_per_s:.0f}",
            f"{each.prompt_tokens_per_s:.0f}",
            str(each.prefill_gpus),
            str(each.gpus),
            f"{each.tpsu:.1f}",
            f"{each.tpsg:.0f}",
        )
    return table
