"""Confidence in a forecast: which measurements its latency figures were fitted to, and where a search goes beyond
them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue.conditions import common_first
from llmd_oke.catalogue.latency_figures import Fit, LatencyFigures
from llmd_oke.planning.conditions import DeployedConditions

from llmd_tuner.latency_models import Reach, Unphysical, unphysical
from llmd_tuner.search_inputs import SearchInputs

MAX_NAMES = 6
"""Maximum number of servers that one sentence lists by name."""


@dataclass(frozen=True)
class Confidence:
    """Basis and errors of a forecast, shown with it.

    Errors are mean absolute relative errors (0.1 is 10 %): of held-out measurements, or of the fitted points themselves
    for the roles in `fitted_errors`, where nothing could be held out; None for a role without a fit.
    """

    basis: Basis
    prefill_error: float | None
    decode_error: float | None
    fitted_errors: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    """Descriptions of where the search goes beyond what was measured, such as larger batches."""
    unphysical: tuple[str, ...] = ()
    """Descriptions of fitted factors that no hardware can have, each with its consequence."""
    conditions: tuple[str, ...] = ()
    """Descriptions of differences between the settings of deployed and of measured servers, with what is known of their
    effect.
    """

    @property
    def measured(self) -> bool:
        """True where the latency figures of prefill or decode were fitted to measurements."""
        return self.prefill_error is not None or self.decode_error is not None

    @property
    def tag(self) -> str:
        """Tag for table headings: `calibrated`, `calibrated, extrapolated` or `bound`."""
        extrapolated = self.beyond and self.basis is not Basis.BOUND
        return f"{self.basis.value}, extrapolated" if extrapolated else self.basis.value

    @property
    def sentence(self) -> str:
        """Sentence with the basis of the forecast, the errors of the fit, and where the forecast exceeds what was
        measured.
        """
        errors = f"{self._error('decode', self.decode_error)}, {self._error('prefill', self.prefill_error)}"
        return "; ".join((f"{self.tag}: {errors}", *self.beyond, *self.unphysical))

    def _error(self, role: str, error: float | None) -> str:
        if error is None:
            return f"{role} not measured"
        return f"{role} ±{error:.0%} {'in sample' if role in self.fitted_errors else 'held out'}"


def confine(
    question: SearchInputs,
    figures: LatencyFigures,
    allow_extrapolation: bool,
    started: DeployedConditions | None = None,
) -> tuple[SearchInputs, Confidence]:
    """Restrict a search to the servers and batches for which its latency figures are valid, and return the restricted
    search with the confidence in its answer.

    Unless extrapolation is allowed, servers beyond the fit are left out, and batches are limited to the largest
    measured one. Figures with a factor that is not physically possible are never extrapolated. Other tensor parallel
    sizes are extrapolated by the latency model; servers with data parallel ranks, whole experts or several nodes that
    nobody measured get lower bounds of their latencies. `started` are the settings that the servers are started with,
    None where these are not known.

    Raises:
        KitError: nothing is left within the fit, and extrapolation is not allowed or impossible.
    """
    faults = unphysical(figures)
    beyond = tuple(_beyond(question, figures))
    fits = {"prefill": figures.prefill.fit, "decode": figures.decode.fit}
    drafts = started is not None and started.handing_over.draft_tokens is not None  # of which nobody has figures
    _refuse_blind(beyond, faults)
    if beyond and not allow_extrapolation:
        listed = "\n".join(f"  {item.text}" for item in beyond)
        remedy = "Measure (`llmd-oke tune plan`) and fit, or allow it with --allow-extrapolation: results are tagged."
        raise KitError(f"The latency figures don't reach that far:\n{listed}", remedy)
    held = {"sizes", "batches"} if not allow_extrapolation else {fault.reach for fault in faults}
    question = _within(question, figures, sizes="sizes" in held, batches="batches" in held)
    if not question.choices.spreads:
        remedy = "Measure servers that both roles share, or add --allow-extrapolation: all results will say so."
        raise KitError("No servers that can be deployed were measured for prefill and decode both.", remedy)
    return question, Confidence(
        basis=Basis.BOUND if drafts else figures.basis,
        prefill_error=_error(figures.prefill.fit),
        decode_error=_error(figures.decode.fit),
        fitted_errors=tuple(name for name, fit in fits.items() if fit and not _held_out(fit)),
        beyond=(*(item.text for item in beyond), *_choices_beyond(question, figures)),
        unphysical=tuple(map(str, faults)),
        conditions=tuple(condition_differences(figures, started)) if started else (),
    )


def condition_differences(figures: LatencyFigures, started: DeployedConditions) -> Iterator[str]:
    """Yield the differences between the settings of a stack's servers and of those that the figures were fitted to;
    nothing for figures without a fit.
    """
    kinds = {"prefill/decode": started.handing_over, "aggregated": started.aggregated}
    return common_first({name: figures.differences(conditions) for name, conditions in kinds.items()})


@dataclass(frozen=True)
class _Beyond:
    """A place at which a question leaves the fit of a role."""

    role: str
    reach: Reach | None
    text: str


def _refuse_blind(beyond: Sequence[_Beyond], faults: Sequence[Unphysical]) -> None:
    """Refuse to extrapolate along a factor that is not physical: no figure says what lies beyond."""
    blind = [
        (item, fault) for item in beyond for fault in faults if (fault.role, fault.reach) == (item.role, item.reach)
    ]
    if blind:
        listed = "\n".join(f"  {item.text}; {fault}" for item, fault in blind)
        remedy = f"Measure and fit again: {', '.join(dict.fromkeys(fault.remedy for _, fault in blind))}."
        raise KitError(f"The latency figures can't be extrapolated so far:\n{listed}", remedy)


def _beyond(question: SearchInputs, figures: LatencyFigures) -> Iterator[_Beyond]:
    """Yield where the question leaves the fits whichever deployment is chosen."""
    prefill, decode = figures.prefill.fit, figures.decode.fit
    for name, fit in (("prefill", prefill), ("decode", decode)):
        if fit is None:
            yield _Beyond(name, None, f"{name}: nothing was fitted; the figures are bounds or assumptions")
    longest, context = question.workload.longest_input_tokens, question.workload.context_tokens
    if prefill and longest > prefill.most_tokens:
        text = f"prefill: prompts of {longest:,.0f} tokens, measured up to {prefill.most_tokens:,.0f}"
        yield _Beyond("prefill", "prompts", text)
    if decode and context > decode.most_tokens:
        text = f"decode: contexts of {context:,.0f} tokens, measured up to {decode.most_tokens:,.0f}"
        yield _Beyond("decode", "contexts", text)


def _choices_beyond(question: SearchInputs, figures: LatencyFigures) -> Iterator[str]:
    """Yield which choices of the search leave the fits; none where extrapolation was not allowed. Servers that are
    bounds are told with each deployment.
    """
    for name, fit in (("prefill", figures.prefill.fit), ("decode", figures.decode.fit)):
        alike = (spread for spread in question.choices.spreads if not question.is_bound(spread))
        left = [spread.kind for spread in alike if fit and not _covers(fit, spread, question)]
        if fit and left:
            measured = ", ".join(spread.kind for spread in fit.parallelisms)
            yield f"{name}: servers {shortened(left)}, measured {measured}"
    most = figures.decode.fit and figures.decode.fit.most_sequences
    if most and question.room.max_num_seqs > most:
        yield f"decode: batches up to {question.room.max_num_seqs}, measured up to {most:g}"


def _within(question: SearchInputs, figures: LatencyFigures, *, sizes: bool, batches: bool) -> SearchInputs:
    """Hold the question to the servers and the batches that were measured, or to one of them, and tell which servers
    are bounds.
    """
    fits = [fit for fit in (figures.prefill.fit, figures.decode.fit) if fit]
    if sizes:
        covered = question.choices.among(lambda spread: all(_covers(fit, spread, question) for fit in fits))
        question = replace(question, choices=covered)
    if fits:
        known = [spread for spread in question.choices.spreads if all(_alike(fit, spread, question) for fit in fits)]
        question = replace(question, measured=frozenset(known) or None)
    if batches and figures.decode.fit:
        most = min(question.room.max_num_seqs, round(figures.decode.fit.most_sequences))
        question = replace(question, room=replace(question.room, max_num_seqs=most))
    return question


def _covers(fit: Fit, spread: Parallelism, question: SearchInputs) -> bool:
    """Tell whether servers are among those that were measured, or between two of them in their tensor parallel size."""
    sizes = _alike(fit, spread, question)
    return bool(sizes) and min(sizes) <= spread.tensor_parallel_size <= max(sizes)


def _alike(fit: Fit, spread: Parallelism, question: SearchInputs) -> list[int]:
    """Return the tensor parallel sizes of measured servers that differ from others in nothing else. Figures that don't
    tell of experts are of servers as their model has them: whole on GPUs where no others are to choose from.
    """
    whole = not fit.servers and all(other.expert_parallel for other in question.choices.spreads if other.gpus > 1)
    return [
        other.tensor_parallel_size
        for other in fit.parallelisms
        if (other.data_parallel_size, other.nodes) == (spread.data_parallel_size, spread.nodes)
        and (spread.gpus == 1 or (whole or other.expert_parallel) == spread.expert_parallel)
    ]


def shortened(names: Sequence[str]) -> str:
    """Join names with commas; of many names only the first few, followed by the number of all."""
    few = ", ".join(names[:MAX_NAMES])
    return few if len(names) <= MAX_NAMES else f"{few} and {len(names) - MAX_NAMES} more"


def _error(fit: Fit | None) -> float | None:
    """Return the mean error of held-out points, or that of the fitted points where nothing was held out."""
    if fit is None:
        return None
    return max(_held_out(fit), default=fit.error)


def _held_out(fit: Fit) -> list[float]:
    return [error for error in (fit.unseen_load_error, fit.unseen_size_error) if error is not None]
