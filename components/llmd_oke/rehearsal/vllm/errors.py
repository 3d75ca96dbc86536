"""Errors as vLLM's API server answers them (v0.26.0: entrypoints/serve/utils/error_response.py and server_utils.py)."""

from collections.abc import Sequence
from http import HTTPStatus

from pydantic import ValidationError


class RequestValueError(ValueError):
    """What vLLM calls VLLMValidationError: its text ends with the parameter and the value that are wrong."""

    def __init__(self, message: str, parameter: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value

    def __str__(self) -> str:
        extras = {"parameter": self.parameter, "value": self.value}
        text = ", ".join(f"{name}={value}" for name, value in extras.items() if value is not None)
        return f"{super().__str__()} ({text})" if text else super().__str__()


class ApiError(Exception):
    """An answer in vLLM's error shape. `kind` is the error's type: BadRequestError, NotFoundError and the like.

    `late` errors come from the engine, after a stream's headers: a stream then carries them as an event.
    """

    def __init__(
        self, status: int, kind: str, message: str, parameter: str | None = None, *, late: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": parameter, "code": status}}
        self.late = late


def bad_request(error: ValueError, *, late: bool = False) -> ApiError:
    """A request that is well formed and that vLLM refuses for what it asks."""
    parameter = error.parameter if isinstance(error, RequestValueError) else None
    return ApiError(HTTPStatus.BAD_REQUEST, "BadRequestError", str(error), parameter, late=late)


def invalid_body(error: ValidationError) -> ApiError:
    """A body that doesn't have the form of a request."""
    found = error.errors(include_url=False)
    errors = [{**each, "loc": ("body", *each["loc"])} for each in found]
    own = [cause for each in found if isinstance(cause := each.get("ctx", {}).get("error"), RequestValueError)]
    parameter = own[0].parameter if own and own[0].parameter else _path(("body", *found[0]["loc"]))
    return malformed([repr(each) for each in errors], parameter)


def malformed(errors: Sequence[str], parameter: str | None) -> ApiError:
    """What vLLM's handler of FastAPI's validation errors answers; it is not of type BadRequestError."""
    text = f"{len(errors)} validation error{'s' if len(errors) > 1 else ''}:\n" + "\n".join(
        f"  {each}" for each in errors
    )
    return ApiError(HTTPStatus.BAD_REQUEST, HTTPStatus.BAD_REQUEST.phrase, text, parameter)


_UNION_MEMBERS = {"str", "int", "float", "bool", "list", "dict", "none"}


def _path(location: Sequence[object]) -> str:
    """The way to a field, without what pydantic puts in for the members of a union."""
    parts = [str(part) for part in location]
    return ".".join(part for part in parts if not set(part) & set("[](){}") and part.lower() not in _UNION_MEMBERS)
