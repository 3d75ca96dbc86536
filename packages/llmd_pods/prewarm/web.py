"""HTTP requests with retries and messages."""

import http.client
import json
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from . import PrewarmError, say

T = TypeVar("T")

CHUNK_BYTES = 8 * 2**20
ANSWER_TIMEOUT_S = 60.0
TRIES = 8
LONGEST_PAUSE_S = 60.0
_FINAL = {400, 401, 403, 404, 410}
_HINTS = {
    401: ": the token is missing or not valid",
    403: ": the token may not read this; was the model's license accepted?",
    404: ": there is no such repository or revision",
}
_LINK_PATH = "/p/..."
_LINK_HINT = ": the link has ended or was deleted, its maker may not read the bucket, or the bucket lacks the file"
"""Cause of a final status of Object Storage, which answers 404 in all of these cases."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Handler of redirects that sends the token to no other host."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        redirect = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirect and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            redirect.remove_header("Authorization")
        return redirect


@dataclass(frozen=True)
class Web:
    """HTTP client for the files of models, with an optional bearer token."""

    token: str | None = None

    def open(self, url: str, headers: dict[str, str] | None = None, method: str = "GET") -> Any:
        """Send a request, without retries, and return the open response."""
        request = urllib.request.Request(url, headers=dict(headers or {}), method=method)  # noqa: S310 - https by the endpoints' defaults
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        return self._opener.open(request, timeout=ANSWER_TIMEOUT_S)

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        """URL opener, cached because each new one loads all certificates that the image trusts."""
        return urllib.request.build_opener(_Redirects())

    def download(self, url: str, path: Path, offset: int = 0) -> None:
        """Download a file from byte `offset` on and append it to `path`; if the server doesn't support ranges, download
        it from the start.
        """
        with (
            self.open(url, {"Range": f"bytes={offset}-"} if offset else {}) as answer,
            path.open("ab" if answer.status == 206 else "wb") as content,
        ):
            shutil.copyfileobj(answer, content, CHUNK_BYTES)

    def read_json(self, url: str) -> tuple[Any, str]:
        """Return a JSON document, and the URL of its next page from the `Link` header, empty if there is none."""

        def request() -> tuple[Any, str]:
            with self.open(url) as answer:
                links: list[str] = answer.headers.get("Link", "").split(",")
                next_page = next((link for link in links if 'rel="next"' in link), "")
                return json.load(answer), next_page.partition("<")[2].partition(">")[0]

        return with_tries(request, without_secrets(url))

    def read_text(self, url: str, most_bytes: int) -> str:
        """Return the text of a small file, at most `most_bytes` bytes of it."""

        def request() -> str:
            with self.open(url) as answer:
                return answer.read(most_bytes).decode()

        return with_tries(request, without_secrets(url))

    def head(self, url: str) -> dict[str, str]:
        """Return the HTTP headers of a file, by lower-case name, without its content."""

        def request() -> dict[str, str]:
            with self.open(url, method="HEAD") as answer:
                return {name.lower(): value for name, value in answer.headers.items()}

        return with_tries(request, without_secrets(url))


def without_secrets(url: str) -> str:
    """Return a URL for messages, without the secret path of a pre-authenticated request and without credentials."""
    parts = urllib.parse.urlsplit(url)
    path = parts.path.partition("/p/")[0] + _LINK_PATH if "/p/" in parts.path else parts.path
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"


def secret_of(environment: Mapping[str, str], name: str) -> str:
    """Return the secret in an environment variable, without surrounding blanks and line ends; empty if the variable
    isn't set.

    Raises:
        PrewarmError: the secret has characters that an HTTP header can't contain, which errors of the HTTP library
            would print.
    """
    secret = environment.get(name, "").strip()
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise PrewarmError(f"{name} has a blank, a control character or a letter outside ASCII (its value isn't shown)")
    return secret


def with_tries(request: Callable[[], T], label: str) -> T:
    """Call `request` up to `TRIES` times while the network or the server fails, and return its result.

    Raises:
        PrewarmError: the last attempt failed, or the HTTP status shows that a retry is useless.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return request()
        except urllib.error.HTTPError as error:
            if error.code in _FINAL or attempt == TRIES:
                hint = _LINK_HINT if label.endswith(_LINK_PATH) else _HINTS.get(error.code, "")
                raise PrewarmError(f"{label}: HTTP {error.code} {error.reason}{hint}") from error
            problem: Exception = error
        except http.client.HTTPException as error:  # the text of some of these errors contains the URL
            if attempt == TRIES:
                raise PrewarmError(f"{label}: {type(error).__name__}") from error
            problem = OSError(type(error).__name__)
        except (OSError, ValueError) as error:
            if attempt == TRIES:
                raise PrewarmError(f"{label}: {error}") from error
            problem = error
        say(f"{label}: {problem}; try {attempt + 1} of {TRIES}")
        time.sleep(pause_s(attempt))
    raise AssertionError


def pause_s(attempt: int) -> float:
    """Return the seconds to wait after failed attempt number `attempt`."""
    return min(LONGEST_PAUSE_S, 2.0**attempt)
