"""`llmd-oke model`: catalogue entries for further models."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
import yaml
from llmd_base.errors import InvalidStack, KitError
from llmd_base.records import document

from llmd_oke.cli import console, options
from llmd_oke.values import values_folder

if TYPE_CHECKING:  # `--help` loads neither pydantic nor an HTTP client
    from llmd_oke.access.hugging_face import ModelFile
    from llmd_oke.catalogue.models import CatalogueModel

app = typer.Typer(
    no_args_is_help=True, help="Models of the catalogue: compute the entry of a further one, see news of recipes."
)

Repository = Annotated[str | None, typer.Option(help="Repository that a config.json that is a file belongs to.")]
Name = Annotated[str | None, typer.Option(help="Name in stack files; the repository's in small letters if left out.")]
Write = Annotated[bool, typer.Option("--write", help="Write values/models/NAME.yaml in the project.")]

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")

_ASSUMED: Mapping[str, tuple[Any, str]] = {
    "apis": (["chat", "completions"], "assumed; responses where the model is at its best by it"),
    "activation_gib_per_gpu": (6.0, "bound: room that vLLM's profiling run takes beside weights and KV cache"),
    "startup_budget_s": (3600, "assumed; llm-d guides, amd/vllm/nixl/base: startup probe of 120 x 30 s"),
    "arguments": ([], "to be filled in: what vLLM's or AMD's documents start this model with"),
    "environment": ({}, "to be filled in, likewise"),
}
"""Fields of an entry that a model's files don't contain: their initial value, and the reason for it."""

_INSTEAD = (
    "the kit has {name} too; in a project this entry stands in its place. Arguments, environment and budgets of the"
    " kit's count no more: copy those that still hold from {file}."
)


@dataclass(frozen=True)
class ComputedEntry:
    """Catalogue entry computed from a model's `files`, its assumptions that the files don't confirm (`bounds`), and its
    YAML `text` with the sources of the figures.
    """

    model: "CatalogueModel"
    files: "tuple[ModelFile, ...]"
    bounds: tuple[str, ...]
    text: str


@app.command("add")
def add(
    source: Annotated[str, typer.Argument(help="Repository of Hugging Face, config.json, or a folder with it.")],
    index: Annotated[
        Path | None, typer.Option("--index", help="model.safetensors.index.json beside a config.json that is a file.")
    ] = None,
    repository: Repository = None,
    name: Name = None,
    revision: Annotated[
        str | None,
        typer.Option(help="Commit, tag or branch; `main` if left out. Servers read the commit that it is now."),
    ] = None,
    write: Write = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Compute the catalogue entry of a model from its config.json, and print or write it.

    The source is a repository of Hugging Face, or of a mirror that HF_ENDPOINT names, with HF_TOKEN for gated ones; or
    files on this machine. Values that can't be computed are assumed, and marked so.
    """
    files, repository, revision = _files(source, index, repository, revision)
    entry = computed_entry(files, repository, revision, name)
    path = project / "values" / "models" / f"{entry.model.name}.yaml"
    if write:
        from llmd_oke.config.yaml_files import write_whole  # noqa: PLC0415

        if path.exists() and not force:
            raise KitError(f"{path} is there already.", "--force replaces it, --name gives the entry another name.")
        write_whole(path, entry.text)
    if as_json:
        console.show_json(_as_plain(entry, path if write else None))
        return
    if not write:
        typer.echo(entry.text, nl=False)
    out = console.output() if write else console.errors()
    out.print("\n".join(_summary(entry, path if write else None)), markup=False, soft_wrap=True)
    if file := _kit_file(entry):
        out.print(f"[magenta]note[/] {_INSTEAD.format(name=entry.model.name, file=file)}", soft_wrap=True)


@app.command("recipes")
def recipes(
    checkout: Annotated[Path, typer.Argument(help="Folder of a clone of https://github.com/vllm-project/recipes.")],
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Show changes in the vLLM project's recipes since the catalogue's entries were written.

    CHECKOUT is a clone of https://github.com/vllm-project/recipes. Entries are changed by hand: each figure names the
    version of the recipe that it was verified with.
    """
    from llmd_oke.catalogue import model, model_names, open_project  # noqa: PLC0415
    from llmd_oke.catalogue.recipes import recipe_news  # noqa: PLC0415

    open_project(project)
    if not as_json:
        console.errors().print("reading recipes, some seconds", markup=False)
    news = recipe_news(checkout, [known for name in model_names() if (known := model(name))])
    if as_json:
        console.show_json(asdict(news))
        return
    out = console.output()
    for change in news.differences:
        out.print(f"{change.model}  {change.path}: {_said(change.before)} -> {_said(change.after)}", markup=False)
    if not news.differences:
        out.print(f"no recipe of an entry has changed up to {news.commit}", markup=False)
    lists = {
        "recipe no longer there": news.gone,
        "version of its recipe not in this clone (git fetch --unshallow)": news.unknown,
        "verified on GPUs of AMD, without an entry": news.further,
    }
    for what, found in lists.items():
        if found:
            console.show_line(f"{what}: {', '.join(found)}")


def _said(value: object) -> str:
    return "nothing" if value is None else json.dumps(value, default=str)


def computed_entry(
    files: "tuple[ModelFile, ...]", repository: str, revision: str | None, name: str | None
) -> ComputedEntry:
    """Return the catalogue entry computed from a model's config.json, and from the index of its weights if there is
    one.

    Raises:
        KitError: a file is no JSON object or is unsupported, or the name or repository is invalid.
    """
    from pydantic import ValidationError  # noqa: PLC0415

    from llmd_oke.catalogue.model_configs import bounds, compute_model  # noqa: PLC0415
    from llmd_oke.catalogue.models import CatalogueModel  # noqa: PLC0415
    from llmd_oke.config.shape_problems import problems  # noqa: PLC0415

    documents = [_document(file) for file in files]
    try:
        computed = compute_model(*documents)
    except InvalidStack as error:
        raise InvalidStack(error.problems, f"no entry can be computed of {files[0].address}") from error
    chosen = name or re.sub(r"[^a-z0-9.-]+", "-", repository.rpartition("/")[2].lower()).strip("-.")
    if not _NAME.fullmatch(chosen):
        remedy = "Small letters, digits, dots and hyphens, 63 at most."
        raise KitError(f"{chosen!r} can't be the name of a model.", remedy if name else f"--name. {remedy}")
    own = {"name": chosen, "repository": repository}
    if revision is not None and _COMMIT.fullmatch(revision):
        own["revision"] = revision
    plain = {name: value for name, (value, _) in _ASSUMED.items()}
    entry = own | computed.model_dump() | plain
    try:
        model = CatalogueModel.model_validate(entry)
    except ValidationError as error:
        raise InvalidStack(problems(error.errors(), entry, CatalogueModel), f"{chosen} can't be an entry") from error
    assumed = tuple(bounds(*documents))
    return ComputedEntry(model, files, assumed, _text(model, own, files, assumed))


def _files(
    source: str, index: Path | None, repository: str | None, revision: str | None
) -> "tuple[tuple[ModelFile, ...], str, str | None]":
    from llmd_oke.access.hugging_face import CONFIG, INDEX, download_model_files  # noqa: PLC0415

    path = Path(source)
    if path.is_dir():
        beside = path / INDEX
        path, index = path / CONFIG, index or (beside if beside.is_file() else None)
    if path.is_file() or source.endswith(".json"):
        if repository is None:
            remedy = "--repository OWNER/NAME: servers read the model from there."
            raise KitError(f"Which repository {source} belongs to is not said.", remedy)
        paths = (path,) if index is None else (path, index)
        return tuple(_local_file(item) for item in paths), repository, revision
    if index is not None or repository is not None:
        message = f"--index and --repository belong to a config.json on this machine; {source!r} is none."
        raise KitError(message, "A path to config.json, or the repository alone.")
    config, listed = download_model_files(source, revision or "main")
    return (config,) if listed is None else (config, listed), source, config.commit or revision


def _local_file(path: Path) -> "ModelFile":
    from llmd_oke.access.hugging_face import LONGEST_INDEX_BYTES, ModelFile  # noqa: PLC0415

    try:
        if path.stat().st_size > LONGEST_INDEX_BYTES:
            raise KitError(f"{path} has more than {LONGEST_INDEX_BYTES // 2**20} MiB, which no such file has.")
        return ModelFile(path.name, str(path), path.read_bytes())
    except OSError as error:
        raise KitError(f"{path} can't be read: {error.strerror}.") from error


def _document(file: "ModelFile") -> Mapping[str, object]:
    try:
        document = json.loads(file.content)
    except (ValueError, RecursionError) as error:
        raise KitError(f"{file.address} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise KitError(f"{file.address} is no JSON object.", "The config.json of a model, as Hugging Face has it.")
    return cast("Mapping[str, object]", document)


def _text(
    model: "CatalogueModel", own: Mapping[str, str], files: "tuple[ModelFile, ...]", assumed: Iterable[str]
) -> str:
    """Return the entry as YAML in the order of the kit's entries: names, computed values, assumed values."""
    plain = model.model_dump(mode="json", exclude_defaults=True)
    told = f"{files[0].address}, sha256 {files[0].sha256}"
    sources = {
        "architecture": told,
        "parameters": "computed from config.json",
        "weights": "computed from " + " and ".join(file.name for file in files),
        "work": "computed from config.json: matrices, without norms and biases",
        "kv_cache": "computed from config.json, in BF16",
        "max_model_len": "config.json: max_position_embeddings",
    }
    lines = ["# A comment beside a figure is its source; `llmd-oke model add` computed what says so."]
    lines += [_line(name, value, None) for name, value in own.items()]
    for name, text in sources.items():
        value = plain[name]
        if name in {"architecture", "work"}:
            lines += [_line(name, None, text), *(f"  {_line(key, item, None)}" for key, item in value.items())]
        else:
            lines.append(_line(name, value, text))
    lines += [f"# Bound: {text}." for text in assumed]
    lines.append("# What the files of a model don't say.")
    lines += [_line(name, value, why) for name, (value, why) in _ASSUMED.items()]
    return "\n".join(lines) + "\n"


def _line(name: str, value: object, comment: str | None) -> str:
    text = (
        ""
        if value is None
        else yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6).removesuffix("...\n").strip()
    )
    line = f"{name}: {text}".rstrip()
    return line if comment is None else f"{line:<35}   # {comment}"


def _summary(entry: ComputedEntry, path: Path | None) -> Iterator[str]:
    model = entry.model
    yield f"{model.name}, {model.repository}" + (f" at {model.revision}" if model.revision else ", the head of main")
    if path:
        yield f"written to {path}"
    for file in entry.files:
        yield f"read: {file.address}, sha256 {file.sha256}"
    parameters, linear = model.parameters, model.architecture.linear_attention
    state = f", {linear.state_bytes_per_sequence:,} bytes of state for a sequence" if linear else ""
    yield (
        f"computed: {parameters.total_billions:g} billion parameters, {parameters.active_billions:g} of them"
        f" for a token; {model.weights.gib:g} GiB of {model.weights.format} weights;"
        f" {model.kv_cache.bytes_per_token:,} bytes of KV cache for a token{state}"
    )
    yield from (f"bound: {text}" for text in entry.bounds)
    for name, (value, why) in _ASSUMED.items():
        yield f"not computed: {name} {json.dumps(value)} ({why})"
    yield "latencies of it are bounds until some are measured: `llmd-oke tune`"


def _kit_file(entry: ComputedEntry) -> Path | None:
    """Return the path of the kit's entry with the same name, which this one would replace in a project; None if there
    is none.
    """
    file = values_folder() / "models" / f"{entry.model.name}.yaml"
    return file if file.is_file() else None


def _as_plain(entry: ComputedEntry, path: Path | None) -> dict[str, Any]:
    from llmd_oke.catalogue.models import ComputedModel  # noqa: PLC0415

    return document(
        "name repository revision",
        entry.model,
        written=str(path) if path else None,
        replaces_kit=_kit_file(entry) is not None,
        read=[document("name address sha256 commit", file) for file in entry.files],
        computed=entry.model.model_dump(mode="json", include=set(ComputedModel.model_fields)),
        bounds=list(entry.bounds),
        assumed={name: {"value": value, "why": why} for name, (value, why) in _ASSUMED.items()},
    )
