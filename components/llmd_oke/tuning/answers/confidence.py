"""How far a forecast may be trusted: what its latency figures were fitted to, and where a question leaves that."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmd_oke.errors import KitError
from llmd_oke.results.row import Basis
from llmd_oke.tuning.search.question import Question
from llmd_oke.tuning.servers.figures import Fit, LatencyFigures


@dataclass(frozen=True)
class Confidence:
    """What stands beside each forecast. Errors are mean absolute errors, as shares: of held-out measurements, or of the
    fitted points themselves for the roles in `fitted_errors`, where nothing could be held out.
    """

    basis: Basis
    prefill_error: float | None
    decode_error: float | None
    fitted_errors: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    """Where the question leaves what was measured."""

    @property
    def measured(self) -> bool:
        """Whether a role was fitted to anything."""
        return self.prefill_error is not None or self.decode_error is not None

    @property
    def tag(self) -> str:
        """For table headings: `calibrated`, `calibrated, extrapolated`, `bound`."""
        extrapolated = self.beyond and self.basis is not Basis.BOUND
        return f"{self.basis.value}, extrapolated" if extrapolated else self.basis.value

    @property
    def sentence(self) -> str:
        """The tag with its errors and where it leaves what was measured."""
        errors = f"{self._error('decode', self.decode_error)}, {self._error('prefill', self.prefill_error)}"
        beyond = "".join(f"; {each}" for each in self.beyond)
        return f"{self.tag}: {errors}{beyond}"

    def _error(self, role: str, error: float | None) -> str:
        if error is None:
            return f"{role} not measured"
        return f"{role} ±{error:.0%} {'in sample' if role in self.fitted_errors else 'held out'}"


def confined(question: Question, figures: LatencyFigures, allow_extrapolation: bool) -> tuple[Question, Confidence]:
    """The question within what the figures were fitted to, and how far its answer may be trusted.

    Tensor parallel sizes beyond the fit are left out, and batches held to the largest that was measured, unless
    extrapolation is allowed.

    Raises:
        KitError: no answer stays within the fit, and extrapolation is not allowed.
    """
    beyond = tuple(_beyond(question, figures))
    fits = {"prefill": figures.prefill.fit, "decode": figures.decode.fit}
    bound = Basis.BOUND in {figures.prefill.basis, figures.decode.basis}
    if not allow_extrapolation:
        if beyond:
            listed = "\n".join(f"  {each}" for each in beyond)
            remedy = (
                "Measure (`llmd-oke tune plan`) and fit, or allow it with --allow-extrapolation: results are tagged."
            )
            raise KitError(f"The latency figures don't reach that far:\n{listed}", remedy)
        question = _within(question, figures)
        if not question.sizes:
            remedy = "Measure sizes that both roles share, or add --allow-extrapolation: all results will say so."
            raise KitError("No tensor parallel size was measured for prefill and decode both.", remedy)
    return question, Confidence(
        basis=Basis.BOUND if bound else Basis.CALIBRATED,
        prefill_error=_error(figures.prefill.fit),
        decode_error=_error(figures.decode.fit),
        fitted_errors=tuple(name for name, fit in fits.items() if fit and not _held_out(fit)),
        beyond=(*beyond, *_choices_beyond(question, figures)),
    )


def _beyond(question: Question, figures: LatencyFigures) -> Iterator[str]:
    """Where no choice of deployment could stay within the fits."""
    for name, fit, tokens in (
        ("prefill", figures.prefill.fit, question.workload.longest_input_tokens),
        ("decode", figures.decode.fit, question.workload.context_tokens),
    ):
        if fit is None:
            yield f"{name}: nothing was fitted; the figures are bounds or assumptions"
            continue
        if tokens > fit.most_tokens:
            what = "prompts" if name == "prefill" else "contexts"
            yield f"{name}: {what} of {tokens:,.0f} tokens, measured up to {fit.most_tokens:,.0f}"


def _choices_beyond(question: Question, figures: LatencyFigures) -> Iterator[str]:
    """Which choices of the search leave the fits; none where extrapolation was not allowed."""
    for name, fit in (("prefill", figures.prefill.fit), ("decode", figures.decode.fit)):
        sizes = [str(size) for size in question.sizes if fit and not _covers(fit, size)]
        if fit and sizes:
            measured = ", ".join(map(str, fit.tensor_parallel_sizes))
            yield f"{name}: tensor parallel sizes {', '.join(sizes)}, measured {measured}"
    most = figures.decode.fit and figures.decode.fit.most_sequences
    if most and question.room.max_num_seqs > most:
        yield f"decode: batches up to {question.room.max_num_seqs}, measured up to {most:g}"


def _within(question: Question, figures: LatencyFigures) -> Question:
    fits = [fit for fit in (figures.prefill.fit, figures.decode.fit) if fit]
    sizes = tuple(size for size in question.sizes if all(_covers(fit, size) for fit in fits))
    most = round(figures.decode.fit.most_sequences) if figures.decode.fit else question.room.max_num_seqs
    room = replace(question.room, max_num_seqs=min(question.room.max_num_seqs, most))
    return replace(question, sizes=sizes, room=room)


def _covers(fit: Fit, size: int) -> bool:
    return min(fit.tensor_parallel_sizes) <= size <= max(fit.tensor_parallel_sizes)


def _error(fit: Fit | None) -> float | None:
    """The error of what was not measured; that of the fitted points themselves only where nothing was held out."""
    if fit is None:
        return None
    return max(_held_out(fit), default=fit.error)


def _held_out(fit: Fit) -> list[float]:
    return [error for error in (fit.unseen_load_error, fit.unseen_size_error) if error is not None]
