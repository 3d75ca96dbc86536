"""`llmd-oke tune import`: measurements of many tools as rows of one table, checked."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from llmd_oke import catalogue
from llmd_oke.catalogue.memory import key_value_tokens
from llmd_oke.cli import console
from llmd_oke.cli.results import Hint, parse_hints
from llmd_oke.errors import KitError
from llmd_oke.results.files import write_rows
from llmd_oke.results.readers import read_all
from llmd_oke.results.reading import Rejected
from llmd_oke.results.row import Row, Subject
from llmd_oke.tuning.measurements import hygiene
from llmd_oke.tuning.measurements.hygiene import Inspection, Limits
from llmd_oke.tuning.search import asking
from llmd_oke.tuning.servers.figures import bound_figures, latency_model_of

Files = Annotated[list[Path], typer.Argument(help="Files or folders of results.", exists=True)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Rows as JSON Lines, or CSV by its name.", dir_okay=False)]
KeepRejected = Annotated[bool, typer.Option("--keep-rejected", help="Write rows that a rule rejects too.")]


def import_rows(
    files: Files,
    output: Output = Path("rows.jsonl"),
    model: Annotated[str | None, typer.Option(help="Model, where files don't say.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU product, where files don't say: MI300X.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs in use, where files don't say.", min=1)] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(help="Of the server, likewise.", min=1)] = None,
    image: Annotated[str | None, typer.Option(help="vLLM image, likewise.")] = None,
    subject: Annotated[str | None, typer.Option(help="end-to-end, prefill or decode, likewise.")] = None,
    topology: Annotated[str | None, typer.Option(help="Of a whole deployment, likewise: 8p-tp1-4d-tp2.")] = None,
    input_tokens: Annotated[float | None, typer.Option(help="Mean prompt length, likewise.", min=1)] = None,
    output_tokens: Annotated[float | None, typer.Option(help="Mean output length, likewise.", min=1)] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Of the server, likewise.", min=1)] = None,
    hint: Hint = None,
    keep_rejected: KeepRejected = False,
) -> None:
    """Read results of `vllm bench serve`, inference-perf, llm-d-benchmark, j-pareto and this kit, and check them.

    What can't be read is listed by file and line; rows that can't be right are left out, each with its reason. Ends
    with exit code 1 where something could not be read, and leaves the output as it was where no row is left.
    """
    options: dict[str, Any] = {
        "model": model,
        "gpu": gpu and asking.gpu_named(gpu),
        "gpus": gpus,
        "tensor_parallel_size": tensor_parallel_size,
        "image": image,
        "subject": subject_of(subject),
        "topology": topology,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "max_num_seqs": max_num_seqs,
    }
    hints = replace(parse_hints(hint or ()), **{name: value for name, value in options.items() if value is not None})
    found = read_all(files, hints)
    inspection = inspected(list(found.rows))
    show_findings(inspection, found.rejected)
    _show_unknown(found.rows)
    rows = found.rows if keep_rejected else inspection.accepted
    if not rows:
        _nothing(files, output)
    write_rows(rows, output)
    console.output().print(f"{len(rows)} of {len(found.rows)} rows in {output}", markup=False, soft_wrap=True)
    if found.rejected:
        raise typer.Exit(1)


def _nothing(files: list[Path], output: Path) -> NoReturn:
    kept = f"; {output} stays as it was" if output.exists() else ""
    message = f"No row is left of {', '.join(map(str, files))}{kept}."
    raise KitError(message, "What is wrong with each is above; what files don't say can be given by options.")


def subject_of(text: str | None) -> Subject | None:
    """The subject that an option names."""
    names: dict[str, Subject] = {"end-to-end": "end-to-end", "prefill": "prefill", "decode": "decode"}
    if text is not None and text not in names:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(names)}", param_hint="--subject")
    return names[text] if text else None


def inspected(rows: list[Row]) -> Inspection:
    """The rows under the rules of hygiene, each against the limits of its own model and GPU."""
    accepted: list[Row] = []
    findings: list[hygiene.Finding] = []
    for key in dict.fromkeys((row.model, row.gpu) for row in rows):
        found = hygiene.inspect([row for row in rows if (row.model, row.gpu) == key], _limits(*key))
        accepted += found.accepted
        findings += found.findings
    return Inspection(tuple(accepted), tuple(findings))


def show_findings(inspection: Inspection, rejected: tuple[Rejected, ...] = ()) -> None:
    """What could not be read, and what was found wrong."""
    for each in rejected:
        console.errors().print(f"not read {each}", markup=False, soft_wrap=True)
    for finding in inspection.findings:
        console.errors().print(str(finding), markup=False, soft_wrap=True)


def _show_unknown(rows: tuple[Row, ...]) -> None:
    """The GPUs whose limits the catalogue doesn't have."""
    known = catalogue.gpu_names()
    for gpu in sorted({row.gpu for row in rows} - set(known)):
        told = f"not held against hardware bounds: {gpu} is no GPU of the catalogue ({', '.join(known)})"
        console.errors().print(told, markup=False, soft_wrap=True)


def _limits(name: str, gpu: str) -> Limits:
    """None where the catalogue has no such model or GPU."""
    model = catalogue.model(name) or catalogue.model_of_repository(name)
    node = catalogue.node_of_gpu(gpu)
    if model is None or node is None:
        return Limits()
    room = {size: key_value_tokens(model, node, size, 0.95) for size in asking.sizes_of(model, node)}
    return Limits(latency_model_of(bound_figures(model, node.gpu), model, node), room)
