"""Schemas of request bodies as vLLM's API server validates them, and vLLM's errors for bodies that don't match.

From vLLM v0.26.0: entrypoints/openai/*/protocol.py, entrypoints/serve/utils/error_response.py and server_utils.py; from
v0.30.0, whose errors differ: exceptions.py and entrypoints/serve/exception_handling/handlers/validation.py.
Fields without effect in the simulation are missing here and are ignored, as vLLM ignores unknown fields.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import TypedDict

_MAX_PROMPTS = 1024
_UNION_MEMBERS = {"str", "int", "float", "bool", "list", "dict", "none"}
TokenIds = list[Annotated[int, Field(ge=0)]]


class RequestValueError(ValueError):
    """Error of a request with an invalid value, as vLLM's VLLMValidationError: the text ends with the wrong parameter
    and its value.
    """

    def __init__(self, message: str, parameter: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value

    def __str__(self) -> str:
        extras = {"parameter": self.parameter, "value": self.value}
        text = ", ".join(f"{name}={value}" for name, value in extras.items() if value is not None)
        return f"{super().__str__()} ({text})" if text else super().__str__()


class EmptyToolsError(RequestValueError):
    """Error of a request with an empty list of tools, of which vLLM 0.26 doesn't name the parameter."""


class ErrorAnswer(Exception):
    """Error answer to an HTTP request, in vLLM's format. `kind` is the error's type, such as BadRequestError or
    NotFoundError.

    `late` errors come from the engine, after the headers of a stream: the stream then contains the error as an event.
    """

    def __init__(
        self, status: int, kind: str, message: str, parameter: str | None = None, *, late: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": parameter, "code": status}}
        self.late = late


def bad_request(error: ValueError, *, late: bool = False) -> ErrorAnswer:
    """Return vLLM's answer to a well-formed request with an unacceptable value."""
    parameter = error.parameter if isinstance(error, RequestValueError) else None
    return ErrorAnswer(HTTPStatus.BAD_REQUEST, "BadRequestError", str(error), parameter, late=late)


class StreamOptions(BaseModel):
    """Field `stream_options` of a request: which further events its stream has."""

    include_usage: bool | None = False


class Message(TypedDict, total=False):
    """Message of a chat; further keys are allowed, as in vLLM."""

    __pydantic_config__ = ConfigDict(extra="allow")  # pyright: ignore[reportGeneralTypeIssues]
    role: str
    content: str | list[dict[str, Any]] | None


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = []
    ignore_eos: bool = False
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    logit_bias: dict[str, float] | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    kv_transfer_params: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_salt(cls, data: dict[str, Any]) -> dict[str, Any]:
        salt = data.get("cache_salt")
        if salt is not None and (not isinstance(salt, str) or not salt):
            raise RequestValueError("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
        return data


class SamplingBody(_Body):
    """Sampling parameters that request bodies of completions and of chats have in common."""

    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    max_tokens: int | None = None
    min_p: float | None = None
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    stop_token_ids: list[int] | None = []
    bad_words: list[str] = []
    allowed_token_ids: list[int] | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_stream(cls, data: dict[str, Any]) -> dict[str, Any]:
        if data.get("stream_options") and not data.get("stream"):
            raise RequestValueError("Stream options can only be defined when `stream=True`.", "stream_options")
        return data

    @model_validator(mode="before")
    @classmethod
    def _check_prompt_logprobs(cls, data: dict[str, Any]) -> dict[str, Any]:
        value = data.get("prompt_logprobs")
        if value is None:
            return data
        if data.get("stream") and (value > 0 or value == -1):
            raise RequestValueError("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        if value < 0 and value != -1:
            raise RequestValueError("`prompt_logprobs` must be a positive value or -1.", "prompt_logprobs", value)
        return data


class CompletionBody(SamplingBody):
    """Body of a request to `/v1/completions`."""

    prompt: TokenIds | list[TokenIds] | str | list[str] | None = None
    n: int = 1
    max_tokens: int | None = 16
    logprobs: int | None = None
    suffix: str | None = None
    echo: bool | None = False

    @model_validator(mode="before")
    @classmethod
    def _check_prompt(cls, data: dict[str, Any]) -> dict[str, Any]:
        prompt: object = data.get("prompt")
        if prompt is None or prompt == "":
            raise RequestValueError("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        items = cast("list[object]", prompt) if isinstance(prompt, list) else []
        if len(items) > _MAX_PROMPTS and not all(isinstance(item, int) for item in items):
            raise RequestValueError(
                f"prompt list length {len(items)} exceeds the maximum allowed count of {_MAX_PROMPTS}. To increase "
                "this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable.",
                "prompt",
            )
        return data

    @model_validator(mode="before")
    @classmethod
    def _check_logprobs(cls, data: dict[str, Any]) -> dict[str, Any]:
        value = data.get("logprobs")
        if value is not None and value < 0:
            raise RequestValueError("`logprobs` must be a positive value.", "logprobs", value)
        return data


class ChatBody(SamplingBody):
    """Body of a request to `/v1/chat/completions`."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = "auto"
    n: int | None = 1
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    continue_final_message: bool = False
    add_generation_prompt: bool = True

    @model_validator(mode="before")
    @classmethod
    def _check_logprobs(cls, data: dict[str, Any]) -> dict[str, Any]:
        value = data.get("top_logprobs")
        if value is None:
            return data
        if value < 0 and value != -1:
            raise RequestValueError("`top_logprobs` must be a positive value or -1.", "top_logprobs", value)
        if value != 0 and not data.get("logprobs"):
            raise RequestValueError("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        return data

    @model_validator(mode="before")
    @classmethod
    def _check_tools(cls, data: dict[str, Any]) -> dict[str, Any]:
        if data.get("tools") == []:
            raise EmptyToolsError(
                "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.",
                "tools",
            )
        choice = data.get("tool_choice")
        if choice is None or choice == "none":
            return data
        if data.get("tools") is None:
            raise RequestValueError("When using `tool_choice`, `tools` must be set.", "tool_choice")
        return data

    @model_validator(mode="before")
    @classmethod
    def _check_generation_prompt(cls, data: dict[str, Any]) -> dict[str, Any]:
        if data.get("continue_final_message") and data.get("add_generation_prompt"):
            raise RequestValueError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        return data


class ResponsesBody(_Body):
    """Body of a request to `/v1/responses`."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    background: bool | None = False
    include: list[str] | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    previous_input_messages: list[dict[str, Any]] | None = None
    reasoning: dict[str, Any] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    store: bool | None = True
    text: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int | None = 0
    truncation: Literal["auto", "disabled"] | None = "disabled"
    user: str | None = None
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)

    @model_validator(mode="before")
    @classmethod
    def _check_unsupported(cls, data: dict[str, Any]) -> dict[str, Any]:
        if data.get("background") and not data.get("store", True):
            raise RequestValueError("background can only be used when `store` is true", "background")
        if data.get("prompt") is not None:
            raise RequestValueError("prompt template is not supported", "prompt")
        return data

    @model_validator(mode="before")
    @classmethod
    def _check_tools(cls, data: dict[str, Any]) -> dict[str, Any]:
        choice = data.get("tool_choice", "auto")
        named = isinstance(choice, dict) and cast("dict[str, Any]", choice).get("type") == "function"
        if data.get("tools"):
            return data
        if choice == "required":
            raise RequestValueError("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
        if named:
            raise RequestValueError("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")
        return {**data, "tool_choice": "none"} if choice in ("auto", "none") else data


_AnyBody = TypeVar("_AnyBody", bound=BaseModel)


def parse(kind: type[_AnyBody], body: Mapping[str, Any], *, since_0_30: bool = False) -> _AnyBody:
    """Return a parsed request body; with `since_0_30`, errors are those of vLLM 0.30, otherwise those of 0.26.

    Raises:
        ErrorAnswer: the body doesn't match the schema (status 400).
    """
    fields = {name: value for name, value in body.items() if name != "max_tokens" or value is not None}
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        causes = (detail.get("ctx", {}).get("error") for detail in error.errors(include_url=False))
        refusal = next((cause for cause in causes if isinstance(cause, RequestValueError)), None)
        raise (bad_request(refusal) if refusal and since_0_30 else _invalid_body(error, refusal)) from error
    except TypeError as error:
        raise bad_request(ValueError(str(error))) from error


def _invalid_body(error: ValidationError, refusal: RequestValueError | None) -> ErrorAnswer:
    """Return vLLM's answer to a body that doesn't match the schema."""
    details = error.errors(include_url=False)
    messages = [repr({**detail, "loc": ("body", *detail["loc"])}) for detail in details]
    if refusal is not None and refusal.parameter and not isinstance(refusal, EmptyToolsError):
        return malformed(messages, refusal.parameter)
    # The way to the field, without what pydantic puts in for the members of a union.
    parts = [str(part) for part in ("body", *details[0]["loc"])]
    path = [part for part in parts if not set(part) & set("[](){}") and part.lower() not in _UNION_MEMBERS]
    return malformed(messages, ".".join(path))


def malformed(messages: Sequence[str], parameter: str | None) -> ErrorAnswer:
    """Return vLLM's answer to a request body that doesn't match the schema, whose error type isn't BadRequestError;
    `messages` are those of pydantic, and `parameter` is the wrong field.
    """
    count = f"{len(messages)} validation error{'s' if len(messages) > 1 else ''}"
    text = "\n".join([f"{count}:", *(f"  {message}" for message in messages)])
    return ErrorAnswer(HTTPStatus.BAD_REQUEST, HTTPStatus.BAD_REQUEST.phrase, text, parameter)
