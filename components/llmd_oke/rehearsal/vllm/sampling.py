"""What vLLM demands of a request beyond its form: sampling parameters and lengths.

From vLLM v0.26.0: sampling_params.py and renderers/params.py.
"""

import math
from dataclasses import dataclass

from llmd_oke.rehearsal.vllm.bodies import ChatBody, CompletionBody, ResponsesBody, SamplingBody
from llmd_oke.rehearsal.vllm.errors import RequestValueError, bad_request

_MAX_SEQUENCES = 16384
_MAX_LOGPROBS = 20
_GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class Room:
    """What a context has room for.

    `asked` is None where the request sets no limit; `parameter` is the limit's name; `text` says that the prompt has
    to be tokenized.
    """

    max_model_len: int
    prompt_tokens: int
    text: bool
    asked: int | None
    parameter: str

    def check(self) -> None:
        """Whether prompt and answer fit.

        Raises:
            ApiError: they don't; 400.
        """
        asked, limit = self.asked or 0, self.max_model_len
        if asked > limit:
            raise bad_request(
                RequestValueError(
                    f"{self.parameter}={asked} cannot be greater than max_model_len=max_total_tokens={limit}. Please "
                    "request fewer output tokens.",
                    self.parameter,
                    asked,
                )
            )
        if self.prompt_tokens > limit - asked:
            # A tokenizer stops at the first token too many, so nobody knows how many there are.
            counted = limit - asked + 1 if self.text else self.prompt_tokens
            least = "at least " if counted == limit - asked + 1 else ""
            raise bad_request(
                RequestValueError(
                    f"This model's maximum context length is {limit} tokens. However, you requested {asked} output "
                    f"tokens and your prompt contains {least}{counted} input tokens, for a total of {least}"
                    f"{counted + asked} tokens. Please reduce the length of the input prompt or the number of "
                    "requested output tokens.",
                    "input_tokens",
                    counted,
                )
            )


def check_sampling(body: CompletionBody | ChatBody, max_tokens: int, logprobs: int | None) -> None:
    """The checks of vLLM's SamplingParams, in its words.

    Raises:
        ApiError: one is not met; 400.
    """
    count = 1 if body.n is None else body.n
    presence, frequency = body.presence_penalty or 0.0, body.frequency_penalty or 0.0
    raise_limit = "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
    _refuse(
        (count >= 1, f"n must be at least 1, got {count}."),
        (count <= _MAX_SEQUENCES, f"n must be at most {_MAX_SEQUENCES}, got {count}. {raise_limit}"),
        (-2 <= presence <= 2, f"presence_penalty must be in [-2, 2], got {presence}."),
        (-2 <= frequency <= 2, f"frequency_penalty must be in [-2, 2], got {frequency}."),
    )
    _check_distribution(body)
    if not 0 <= _or(body.min_p, 0) <= 1:
        raise bad_request(ValueError(f"min_p must be in [0, 1], got {body.min_p}."))
    if max_tokens < 1:
        raise bad_request(
            RequestValueError(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
        )
    least, stops = body.min_tokens, body.stop if isinstance(body.stop, list) else [body.stop]
    _refuse(
        (least >= 0, f"min_tokens must be greater than or equal to 0, got {least}."),
        (least <= max_tokens, f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {least}."),
        ("" not in stops, "stop cannot contain an empty string."),
        ("" not in body.bad_words, f"bad_words cannot contain an empty string. Got bad_words={body.bad_words}"),
        (
            count == 1 or _or(body.temperature, 1) >= _GREEDY_BELOW,
            f"n must be 1 when using greedy sampling, got {count}.",
        ),
    )
    _check_logprobs(body, logprobs)


def check_responses(body: ResponsesBody) -> None:
    """The same for `/v1/responses`.

    Raises:
        ApiError: one is not met; 400.
    """
    _check_distribution(body)
    stops = body.stop if isinstance(body.stop, list) else [body.stop]
    asked = body.max_output_tokens
    if asked is not None and asked < 1:
        raise bad_request(RequestValueError(f"max_tokens must be at least 1, got {asked}.", "max_tokens", asked))
    _refuse(("" not in stops or body.stop == "", "stop cannot contain an empty string."))


def _check_distribution(body: SamplingBody | ResponsesBody) -> None:
    temperature, top_p = _or(body.temperature, 1), _or(body.top_p, 1)
    repetition, top_k = _or(body.repetition_penalty, 1), _or(body.top_k, 0)
    _refuse((repetition > 0, f"repetition_penalty must be greater than zero, got {float(repetition)}."))
    for met, demand, name, value in (
        (math.isfinite(temperature), "a finite number", "temperature", temperature),
        (temperature >= 0, "non-negative", "temperature", temperature),
        (temperature <= 2, "in [0, 2]", "temperature", temperature),
        (0 < top_p <= 1, "in (0, 1]", "top_p", top_p),
    ):
        if not met:
            raise bad_request(RequestValueError(f"{name} must be {demand}, got {float(value)}.", name, float(value)))
    _refuse((top_k >= -1, f"top_k must be 0 (disable), or at least 1, got {top_k}."))


def _check_logprobs(body: SamplingBody, logprobs: int | None) -> None:
    """Log probabilities and token ids are judged by the engine, once it has the request."""
    for name, kind, asked in (("logprobs", "sample", logprobs), ("prompt_logprobs", "prompt", body.prompt_logprobs)):
        if asked is not None and (asked > _MAX_LOGPROBS or asked == -1):
            text = "of the whole vocabulary" if asked == -1 else f"of {asked}"
            message = f"Requested {kind} logprobs {text}, which is greater than max allowed: {_MAX_LOGPROBS}"
            raise bad_request(RequestValueError(message, name, asked), late=True)
    if body.allowed_token_ids == []:
        error = RequestValueError("allowed_token_ids is not None and empty!", "allowed_token_ids", [])
        raise bad_request(error, late=True)


def _refuse(*demands: tuple[bool, str]) -> None:
    for met, message in demands:
        if not met:
            raise bad_request(ValueError(message))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
