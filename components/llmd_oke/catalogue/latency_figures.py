"""Latency figures (`values/latency`): factors of prefill, decode and KV transfer times of a model on a GPU product,
measured or bounds.
"""

from pathlib import Path
from typing import Annotated, Any, cast

import yaml
from llmd_base.documents import explain, require_bounded
from llmd_base.errors import KitError, Problem
from llmd_base.row import Basis
from llmd_bench.deployment import Parallelism, parse_server_kind
from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.conditions import Conditions, common_first, differences
from llmd_oke.catalogue.entries import SUFFIX, EntryKind
from llmd_oke.catalogue.models import CatalogueModel
from llmd_oke.catalogue.project import LATENCY, latency_files
from llmd_oke.catalogue.shapes import Gpu
from llmd_oke.values import VALUES, Entry, entry_reader, follows_project, read_yaml


def _server_kind(text: str) -> str:
    return parse_server_kind(text).kind


ServerKind = Annotated[str, AfterValidator(_server_kind)]
"""Text for the parallelism of a server: `tp1dp16ep-2n` has 16 ranks that share whole experts, on 2 nodes."""


class Fit(Entry):
    """Fit of one role's latency factors to measurements: which measurements, and the errors of the fit. Errors are mean
    absolute percentage errors as shares (0.1 is 10 %).
    """

    source: str
    """Source of the measurements."""
    points: int
    tensor_parallel_sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    servers: tuple[ServerKind, ...] = ()
    """Parallelism of the servers that were measured, such as `tp1dp16ep-2n`; empty if all have only tensor parallelism
    and the expert parallelism that is the model's default.
    """
    most_sequences: float
    """Largest batch of one rank (decode), or largest number of concurrent prompts (prefill), that was measured."""
    most_tokens: float
    """Longest measured prompt (prefill) or mean context (decode), in tokens."""
    error: float
    """Mean absolute percentage error of the fit at the measured points, as a share (0.1 is 10 %)."""
    unseen_load_error: float | None = None
    """Error, as in `error`, of the latencies at each load when predicted from the other loads; None if there are too
    few loads.
    """
    unseen_size_error: float | None = None
    """Error, as in `error`, of the latencies at each tensor parallel size when predicted from the other sizes; None if
    there are too few sizes.
    """
    conditions: Conditions | None = None
    """Conditions (image and settings) of the measured servers; None if `LatencyFigures.conditions` apply."""

    @property
    def parallelisms(self) -> tuple[Parallelism, ...]:
        """Parallelism of each kind of server that was measured."""
        alone = (Parallelism(size) for size in self.tensor_parallel_sizes)
        return tuple(map(parse_server_kind, self.servers)) or tuple(alone)


class PrefillFigures(Entry):
    """Factors of the time of a prefill, relative to the GPUs' limits.

    Attributes:
        basis: basis of these figures.
        overhead_s: constant time of a prompt in seconds.
        compute_efficiency: share of the GPUs' peak rate of matrix products that is reached.
        all_reduce_efficiency: share of the links' rate that all-reduces reach.
        fit: fit to measurements; None if the figures are bounds or assumptions.
    """

    basis: Basis
    overhead_s: NonNegativeFloat
    compute_efficiency: PositiveFloat
    all_reduce_efficiency: PositiveFloat
    fit: Fit | None = None


class DecodeFigures(Entry):
    """Factors of the time of a decode step, relative to the GPUs' limits.

    Attributes:
        basis: basis of these figures.
        layer_s: additional seconds per decode step for each layer of the model.
        bytes_factor: multiple of the time to read weights and KV cache at full bandwidth.
        flops_factor: multiple of the time to compute at the peak rate of matrix products.
        sequence_s: additional seconds per decode step for each sequence in the batch.
        fixed_s: additional constant seconds per decode step, by the parallelism of the server.
        fit: fit to measurements; None if the figures are bounds or assumptions.
    """

    basis: Basis
    layer_s: NonNegativeFloat
    bytes_factor: NonNegativeFloat
    flops_factor: NonNegativeFloat
    sequence_s: NonNegativeFloat
    fixed_s: dict[PositiveInt | ServerKind, float] = Field(default_factory=dict[int | str, float])
    """Additional constant seconds per decode step, by tensor parallel size, or by the text for the server's parallelism
    if it has several ranks or spans nodes.
    """
    fit: Fit | None = None


class TransferFigures(Entry):
    """Factors of the time of a KV transfer.

    Attributes:
        basis: basis of these figures.
        efficiency: share of the RDMA ports' rate that is reached.
        descriptor_s: time in seconds of each descriptor, which is one block of one layer.
        handshake_s: time in seconds of the first transfer between two servers.
    """

    basis: Basis
    efficiency: PositiveFloat
    descriptor_s: NonNegativeFloat
    handshake_s: NonNegativeFloat


assumed_transfer = entry_reader("tuning", "transfer", TransferFigures)
"""Return the assumed factors of a KV transfer (`values/tuning/transfer.yaml`), for models without their own."""


class ExpertFigures(Entry):
    """Load balance of experts where each GPU holds whole experts: `imbalance` is the load of the busiest GPU over the
    mean.
    """

    basis: Basis
    imbalance: Annotated[float, Field(ge=1.0)]


assumed_experts = entry_reader("tuning", "experts", ExpertFigures)
"""Return the assumed imbalance of experts (`values/tuning/experts.yaml`), for models without their own."""


class LatencyFigures(Entry):
    """Latency figures of a model on a GPU product, one file of `values/latency`. Factors are relative to the sizes of
    that model and the limits of that GPU.
    """

    model: str
    gpu: str
    image: str | None = None
    """Measured vLLM image; None if the figures combine several images."""
    conditions: Conditions | None = None
    """Conditions of the measured servers, unless the fit of a role has its own; None if unknown."""
    prefill: PrefillFigures
    decode: DecodeFigures
    transfer: TransferFigures = Field(default_factory=assumed_transfer)
    experts: ExpertFigures = Field(default_factory=assumed_experts)

    @property
    def basis(self) -> Basis:
        """Basis of latencies computed from these figures: a bound if the figures of prefill or decode are limits or
        assumptions.
        """
        return Basis.BOUND if Basis.BOUND in {self.prefill.basis, self.decode.basis} else Basis.CALIBRATED

    @property
    def measured(self) -> bool:
        """True if the figures of at least one role are fitted to measurements; otherwise all are bounds or
        assumptions.
        """
        return self.prefill.fit is not None or self.decode.fit is not None

    def measured_conditions(self) -> dict[str, Conditions | None]:
        """Return the conditions under which each fitted role was measured; None for unknown conditions."""
        fits = {"prefill": self.prefill.fit, "decode": self.decode.fit}
        return {name: fit.conditions or self.conditions for name, fit in fits.items() if fit}

    def differences(self, deployed: Conditions) -> list[str]:
        """Return descriptions of the differences between deployed servers and measured ones; empty for figures without
        a fit.
        """
        measured = self.measured_conditions()
        return list(
            common_first({name: list(differences(conditions, deployed)) for name, conditions in measured.items()})
        )


def latency_kind(gpu: str) -> EntryKind[LatencyFigures]:
    """Return the kind of catalogue entries with the latency figures of models on a GPU product."""
    return EntryKind(f"{LATENCY}/{gpu}", LatencyFigures, key="model")


@follows_project
def latency_figures(model_name: str, gpu: str) -> LatencyFigures | None:
    """Return the catalogue's latency figures of a model on a GPU product; None if it has none.

    Raises:
        InvalidStack: the figures are the project's own, and invalid.
    """
    return entries.entry(latency_kind(gpu), model_name)


def project_problems() -> list[Problem]:
    """Return all problems of the latency figures in the open project's `values/`."""
    found = list[Problem]()
    for gpu, model in latency_files():
        figures, problems = entries.judged(latency_kind(gpu), model)
        found += problems
        if figures is not None and figures.gpu != gpu:
            file = f"{VALUES}/{LATENCY}/{gpu}/{model}{SUFFIX}"
            found.append(Problem("gpu", figures.gpu, gpu, "the folder is called so", file=file))
    return found


def known_figures(model: CatalogueModel, gpu: Gpu) -> LatencyFigures:
    """Return the catalogue's latency figures of a model on a GPU; bounds of the hardware if it has none."""
    return latency_figures(model.name, gpu.product) or bound_figures(model, gpu)


def bound_figures(model: CatalogueModel, gpu: Gpu) -> LatencyFigures:
    """Return the figures of ideal servers that reach their GPUs' limits. Latencies from them are lower bounds and never
    used as a forecast; a fit to measurements starts from them.
    """
    return LatencyFigures(
        model=model.name,
        gpu=gpu.product,
        prefill=PrefillFigures(basis=Basis.BOUND, overhead_s=0.0, compute_efficiency=1.0, all_reduce_efficiency=1.0),
        decode=DecodeFigures(basis=Basis.BOUND, layer_s=0.0, bytes_factor=1.0, flops_factor=0.0, sequence_s=0.0),
    )


def read_figures(path: Path) -> LatencyFigures:
    """Return the latency figures in a file written from `figures_text` or in the format of `values/latency`.

    Raises:
        KitError: the file can't be read, or has a different format.
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
    """Return latency figures as YAML, rounded to four significant digits."""
    document = figures.model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(_rounded(document), sort_keys=False, width=120)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in cast("dict[Any, Any]", value).items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
