"""The latency figures in `values/latency`: how fast servers of a model are on a GPU product, measured or bounded."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import yaml
from llmd_base.documents import explain, require_bounded
from llmd_base.errors import KitError, Problem
from llmd_base.row import Basis
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.conditions import Conditions, common_first, differences
from llmd_oke.catalogue.entries import SUFFIX, EntryKind
from llmd_oke.catalogue.models import CatalogueModel
from llmd_oke.catalogue.project import LATENCY, latency_files
from llmd_oke.catalogue.shapes import Gpu
from llmd_oke.values import VALUES, Entry, follows_project, read_yaml, required_entry


class Fit(Entry):
    """Fit of a section: what it was fitted to, and how well. Errors are mean absolute errors of a time, as shares of
    it.
    """

    source: str
    """Where the measurements are from."""
    points: int
    tensor_parallel_sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    most_sequences: float
    """The largest batch, or concurrency of prompts, that was measured."""
    most_tokens: float
    """The longest prompt (prefill) or mean context (decode) that was measured."""
    error: float
    """Of the points themselves."""
    unseen_load_error: float | None = None
    """Of each load, predicted from the others; None where there are too few."""
    unseen_size_error: float | None = None
    """Of each tensor parallel size, predicted from the others; None where there are too few."""
    conditions: Conditions | None = None
    """What servers were started with when they were measured; None where the figures as a whole tell."""


class PrefillFigures(Entry):
    """Factors of a prefill."""

    basis: Basis
    overhead_s: NonNegativeFloat
    compute_efficiency: PositiveFloat
    all_reduce_efficiency: PositiveFloat
    fit: Fit | None = None


class DecodeFigures(Entry):
    """Factors of a decode step."""

    basis: Basis
    layer_s: NonNegativeFloat
    bytes_factor: NonNegativeFloat
    flops_factor: NonNegativeFloat
    sequence_s: NonNegativeFloat
    fixed_s: dict[int, float] = Field(default_factory=dict[int, float])
    """Beside the rest, by tensor parallel size."""
    fit: Fit | None = None


class TransferFigures(Entry):
    """Factors of a KV transfer."""

    basis: Basis
    efficiency: PositiveFloat
    descriptor_s: NonNegativeFloat
    handshake_s: NonNegativeFloat


@cache
def assumed_transfer() -> TransferFigures:
    """`values/tuning/transfer.yaml`, for figures that don't tell their own."""
    return required_entry("tuning", "transfer", TransferFigures)


class LatencyFigures(Entry):
    """One file of `values/latency`: a model on a GPU product. Sizes are the model's, limits the GPU's."""

    model: str
    gpu: str
    image: str | None = None
    """The vLLM image that was measured; None where figures of several are joined."""
    conditions: Conditions | None = None
    """What servers were started with when they were measured, where the fit of a role doesn't tell its own; None where
    nothing is told of it."""
    prefill: PrefillFigures
    decode: DecodeFigures
    transfer: TransferFigures = Field(default_factory=assumed_transfer)

    @property
    def basis(self) -> Basis:
        """Basis of latencies by these figures: bounds where a role's are limits or assumptions."""
        return Basis.BOUND if Basis.BOUND in {self.prefill.basis, self.decode.basis} else Basis.CALIBRATED

    @property
    def measured(self) -> bool:
        """True if a role was fitted to anything; else they are bounds or assumptions, all of them."""
        return self.prefill.fit is not None or self.decode.fit is not None

    def measured_conditions(self) -> dict[str, Conditions | None]:
        """Return the conditions of the servers that each fitted role was measured of."""
        fits = {"prefill": self.prefill.fit, "decode": self.decode.fit}
        return {name: fit.conditions or self.conditions for name, fit in fits.items() if fit}

    def differences(self, deployed: Conditions) -> list[str]:
        """Describe how servers that are deployed differ from those that were measured; nothing for figures without a
        fit.
        """
        measured = self.measured_conditions()
        return list(
            common_first({name: list(differences(conditions, deployed)) for name, conditions in measured.items()})
        )


def latency_kind(gpu: str) -> EntryKind[LatencyFigures]:
    """Return the kind of entry that has the figures of models on a GPU product."""
    return EntryKind(f"{LATENCY}/{gpu}", LatencyFigures, key="model")


@follows_project
def latency_figures(model_name: str, gpu: str) -> LatencyFigures | None:
    """The catalogue's figures of a model on a GPU product, or None where it has none.

    Raises:
        InvalidStack: they are the project's own, and something is wrong with them.
    """
    return entries.entry(latency_kind(gpu), model_name)


def project_problems() -> list[Problem]:
    """All that is wrong with the latency figures of the open project's own `values/`."""
    return [problem for gpu, model in latency_files() for problem in _of_file(gpu, model)]


def _of_file(gpu: str, model: str) -> Iterator[Problem]:
    figures, problems = entries.judged(latency_kind(gpu), model)
    yield from problems
    if figures is not None and figures.gpu != gpu:
        file = f"{VALUES}/{LATENCY}/{gpu}/{model}{SUFFIX}"
        yield Problem("gpu", figures.gpu, gpu, "the folder is called so", file=file)


def known_figures(model: CatalogueModel, gpu: Gpu) -> LatencyFigures:
    """The catalogue's latency figures of a model on a GPU; bounds of the hardware where it has none."""
    return latency_figures(model.name, gpu.product) or bound_figures(model, gpu)


def bound_figures(model: CatalogueModel, gpu: Gpu) -> LatencyFigures:
    """Figures of servers that lose nothing to their hardware's limits: where a fit starts, and never a forecast."""
    return LatencyFigures(
        model=model.name,
        gpu=gpu.product,
        prefill=PrefillFigures(basis=Basis.BOUND, overhead_s=0.0, compute_efficiency=1.0, all_reduce_efficiency=1.0),
        decode=DecodeFigures(basis=Basis.BOUND, layer_s=0.0, bytes_factor=1.0, flops_factor=0.0, sequence_s=0.0),
    )


def read_figures(path: Path) -> LatencyFigures:
    """The figures of a file that `figures_text` wrote, or that has the form of those in `values/latency`.

    Raises:
        KitError: the file can't be read, or has another form.
    """
    try:
        require_bounded(path.read_text(encoding="utf-8"))
        return LatencyFigures.model_validate(read_yaml(path))
    except OSError as error:
        raise KitError(f"{path} can't be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise KitError(f"{path} is not YAML: {error}") from error
    except ValidationError as error:
        wrong = explain(error, "the file")
        raise KitError(f"{path} has no latency figures: {wrong}", "`llmd-oke tune fit` makes such files.") from error
    except (ValueError, TypeError) as error:
        raise KitError(f"{path} has no latency figures: {error}") from error


def figures_text(figures: LatencyFigures) -> str:
    """The figures as YAML, rounded to four digits."""
    document = figures.model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(_rounded(document), sort_keys=False, width=120)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in cast("dict[Any, Any]", value).items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
