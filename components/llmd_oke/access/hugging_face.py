"""Download of a model's config.json and of the index of its weights, from Hugging Face or a mirror (`HF_ENDPOINT`)."""

import os
import re
import time
from dataclasses import dataclass
from hashlib import sha256

import httpx2
from llmd_base.errors import KitError

ENDPOINT = "https://huggingface.co"
CONFIG, INDEX = "config.json", "model.safetensors.index.json"
LONGEST_CONFIG_BYTES = 2**20
LONGEST_INDEX_BYTES = 64 * 2**20
LIMIT_S = 60.0
"""Maximum duration of the download of one file in seconds, from the request to the last byte."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]{0,127}(/[\w-][\w.-]{0,127}){0,3}")


@dataclass(frozen=True)
class ModelFile:
    """File of a model: `address` is its URL or path, `commit` the repository's commit, None if unknown."""

    name: str
    address: str
    content: bytes
    commit: str | None = None

    @property
    def sha256(self) -> str:
        """SHA-256 of the file's content, in hexadecimal."""
        return sha256(self.content).hexdigest()


def download_model_files(
    repository: str, revision: str = "main", http: httpx2.Client | None = None
) -> tuple[ModelFile, ModelFile | None]:
    """Download config.json and the index of the weights; the index is None for a model with a single weights file.

    `HF_TOKEN` is sent over TLS only, and to no other host.

    Raises:
        KitError: repository or revision isn't valid, the host doesn't answer, the file may not be read, or the file is
            larger than its limit.
    """
    if not _REPOSITORY.fullmatch(repository) or ".." in repository:
        raise KitError(f"{repository!r} is neither a file nor a repository of Hugging Face.", "OWNER/NAME, or a path.")
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise KitError(f"--revision {revision!r} is no revision.", "A commit, a tag or a branch.")
    base = _endpoint()
    client = http or httpx2.Client(timeout=10.0)
    config = _download(client, base, repository, revision, CONFIG, LONGEST_CONFIG_BYTES)
    if config is None:
        remedy = "Is it the name of a model, in the form OWNER/NAME? Private ones look the same without HF_TOKEN."
        raise KitError(f"{base}/{repository} has no {CONFIG} at {revision}.", remedy)
    index = _download(client, base, repository, config.commit or revision, INDEX, LONGEST_INDEX_BYTES)
    return config, index


def _endpoint() -> str:
    endpoint = (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
    try:
        address = httpx2.URL(endpoint)
    except httpx2.InvalidURL:
        address = None
    if address is None or address.scheme not in {"http", "https"} or not address.host or address.userinfo:
        raise KitError("HF_ENDPOINT is no address of a server.", f"For example {ENDPOINT}, without user and password.")
    return endpoint


def _download(
    client: httpx2.Client, base: str, repository: str, revision: str, name: str, most_bytes: int
) -> ModelFile | None:
    """Download one file of at most `most_bytes`; return None if the repository has no file `name`."""
    url, content, deadline_s = f"{base}/{repository}/resolve/{revision}/{name}", bytearray(), time.monotonic() + LIMIT_S
    token = os.environ.get("HF_TOKEN", "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token and base.startswith("https://") else {}
    try:
        with client.stream("GET", url, headers=headers, follow_redirects=True) as answer:
            if answer.status_code == 404:
                return None
            if answer.status_code in {401, 403}:
                remedy = "Accept its terms there, and give a token that may read it in HF_TOKEN.\n" + _offline(
                    repository
                )
                raise KitError(f"{url} may not be read without a token that is allowed to.", remedy)
            answer.raise_for_status()
            for part in answer.iter_bytes():
                content += part
                if len(content) > most_bytes:
                    raise KitError(f"{url} has more than {most_bytes // 2**20} MiB, which no such file has.")
                if time.monotonic() > deadline_s:
                    raise KitError(f"{url} did not arrive within {LIMIT_S:.0f} s.", _offline(repository))
            commit = answer.headers.get("x-repo-commit")
    except httpx2.HTTPStatusError as error:
        raise KitError(f"{url} is answered with {error.response.status_code}.", _offline(repository)) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise KitError(f"{base} can't be reached: {type(error).__name__}.", _offline(repository)) from error
    pinned = commit if commit and re.fullmatch("[0-9a-f]{40}", commit) else None
    return ModelFile(name, url, bytes(content), pinned)


def _offline(repository: str) -> str:
    return (
        "Without a way there: HF_ENDPOINT for a mirror, or on a machine that has one"
        f" `hf download {repository} {CONFIG} {INDEX}`, and here with both files"
        f" `llmd-oke model add {CONFIG} --index {INDEX} --repository {repository}`."
    )
