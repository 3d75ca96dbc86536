"""OCI's REST API, as far as the kit asks it: signed requests over HTTPS, without OCI's SDK or command line."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast
from urllib.parse import urlencode

import httpx

from llmd_oke.access.signing import Signer
from llmd_oke.errors import KitError

TIMEOUT_S = 30.0
TRIES = 4
MOST_PAGES = 100
_AGAIN = {409, 429, 500, 502, 503, 504}

HOSTS = {
    "bastion": "https://bastion.{region}.oci.oraclecloud.com/20210331",
    "compute": "https://iaas.{region}.oraclecloud.com/20160918",
    "containerengine": "https://containerengine.{region}.oci.oraclecloud.com/20180222",
    "filestorage": "https://filestorage.{region}.oraclecloud.com/20171215",
    "identity": "https://identity.{region}.oci.oraclecloud.com/20160918",
    "limits": "https://limits.{region}.oci.oraclecloud.com/20190729",
    "lustre": "https://lustre-file-storage.{region}.oci.oraclecloud.com/20250228",
}
"""Endpoints and versions of services (OCI documentation, API Reference and Endpoints)."""


class OciError(KitError):
    """OCI refused a request. `status` is its HTTP status, 0 where there was no answer; `code` is OCI's word for it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class OciClient(Protocol):
    """Asks OCI. Tests have one of their own."""

    def get(self, service: str, path: str, **query: str) -> Any:
        """The document at a path; all pages of it where it is a list.

        Raises:
            OciError: OCI refuses, or does not answer.
        """
        ...

    def send(self, method: str, service: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to a request that may change something.

        Raises:
            OciError: OCI refuses, or does not answer.
        """
        ...


class SignedOciClient:
    """Signs each request."""

    def __init__(
        self,
        signer: Signer,
        region: str,
        http: httpx.Client | None = None,
        pause: Callable[[float], None] = time.sleep,
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        self._signer = signer
        self._region = region
        self._http = http or httpx.Client(timeout=TIMEOUT_S)
        self._pause = pause
        self._hosts = hosts or HOSTS

    def get(self, service: str, path: str, **query: str) -> Any:
        """The document at a path; all pages of it where it is a list."""
        document, page = self._page(service, path, query)
        for _ in range(MOST_PAGES):
            if not page or not isinstance(document, list):
                break
            more, page = self._page(service, path, {**query, "page": page})
            document = [*cast("list[Any]", document), *more]
        else:
            raise OciError(0, "TooManyPages", f"{service} {path} has more than {MOST_PAGES} pages.")
        return cast("Any", document)

    def send(self, method: str, service: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to a request that may change something."""
        content = json.dumps(body or {}).encode() if method in {"POST", "PUT"} else None
        answer = self._ask(method, self._url(service, path), content)
        return answer.json() if answer.content else None

    def _page(self, service: str, path: str, query: Mapping[str, str]) -> tuple[Any, str]:
        url = self._url(service, path) + (f"?{urlencode(query)}" if query else "")
        answer = self._ask("GET", url, None)
        return answer.json(), answer.headers.get("opc-next-page", "")

    def _url(self, service: str, path: str) -> str:
        return self._hosts[service].format(region=self._region) + path

    def _ask(self, method: str, url: str, body: bytes | None) -> httpx.Response:
        """Asks again where OCI is busy; a request that may change something only where it was surely not taken."""
        for attempt in range(1, TRIES + 1):
            try:
                headers = self._signer.headers(method, url, body=body)
                answer = self._http.request(method, url, content=body, headers=headers)
            except httpx.HTTPError as error:
                raise OciError(0, "NoAnswer", f"{url.split('?', maxsplit=1)[0]} does not answer: {error}") from error
            busy = answer.status_code in _AGAIN if method == "GET" else answer.status_code == 429
            if not busy or attempt == TRIES:
                return _judged(answer, url)
            self._pause(2.0**attempt)
        raise AssertionError


def _judged(answer: httpx.Response, url: str) -> httpx.Response:
    if not answer.is_error:
        return answer
    code, message = _reason(answer)
    raise OciError(
        answer.status_code, code, f"OCI refuses {url.split('?', maxsplit=1)[0]}: {answer.status_code} {code}: {message}"
    )


def _reason(answer: httpx.Response) -> tuple[str, str]:
    try:
        document = answer.json()
        return str(document.get("code", "")), str(document.get("message", ""))
    except (ValueError, AttributeError):
        return "", answer.text[:200]
