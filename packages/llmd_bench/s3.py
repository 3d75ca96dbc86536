"""Store of results in a bucket of an S3-compatible service, such as OCI Object Storage, by `obstore` (the extra `s3`).

Endpoint and keys come from the usual environment variables of S3 tools: AWS_ENDPOINT_URL_S3, AWS_REGION,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN. For OCI these are
`https://<namespace>.compat.objectstorage.<region>.oraclecloud.com`, the region, and a customer secret key.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from llmd_base.errors import KitError
from llmd_base.extras import extra
from llmd_pods.prewarm.places import relative

from llmd_bench.files import MAX_REQUEST_BYTES
from llmd_bench.stores import UNSAFE_NAME_REMEDY, safe_names

with extra("s3", "A history in a bucket"):
    import obstore
    from obstore.exceptions import BaseError, InvalidPathError
    from obstore.store import S3Store
if TYPE_CHECKING:
    from obstore.store import S3Config

CONNECT_TIMEOUT = timedelta(seconds=30)
TRANSFER_TIMEOUT = timedelta(minutes=10)
"""Time limit of one request, including the transfer of its file."""
RETRY_TIMEOUT = timedelta(seconds=10)
"""Time limit for retries of a request to a busy service."""

MAX_FILES = 1_000_000

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_REMEDY = "Check bucket, prefix, the variables AWS_* for endpoint, region and keys, and this machine's clock."


class BucketStore:
    """Store of the objects of a bucket below a prefix; `address` is the store's name in errors."""

    def __init__(self, bucket: S3Store, address: str) -> None:
        self._bucket = bucket
        self._address = address

    def names(self, below: str) -> list[str]:
        """Return the sorted names of all files below a directory of the store."""
        names: list[str] = []
        with self._errors(self._address):
            for entries in obstore.list(self._bucket, below or None, chunk_size=1000):
                names += [entry["path"] for entry in entries]
                if len(names) > MAX_FILES:
                    raise KitError(f"{self._address} has more than {MAX_FILES} files.", "Choose a narrower prefix.")
        folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
        return sorted(set(names) - folders)  # web consoles create an empty object for each folder

    def read(self, name: str) -> bytes:
        """Return the content of a file of at most `MAX_REQUEST_BYTES`."""
        where, content = self._where(name), bytearray()
        with self._errors(where):
            for chunk in obstore.get(self._bucket, name):
                content += chunk
                if len(content) > MAX_REQUEST_BYTES:
                    limit = MAX_REQUEST_BYTES // 2**20
                    raise KitError(f"{where} is larger than {limit} MiB, which no file of results is.")
        return bytes(content)

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file in the bucket."""
        with self._errors(self._where(name)):
            obstore.put(self._bucket, name, content, use_multipart=False)

    def _where(self, name: str) -> str:
        with safe_names(self._address):
            relative(name)
        return f"{self._address}/{name}"

    @contextmanager
    def _errors(self, where: str) -> Generator[None]:
        """Convert errors of obstore into a KitError with the first line of their message; further lines are obstore's
        internal state.
        """
        try:
            yield
        except (BaseError, OSError) as error:
            reason = "".join(filter(str.isprintable, str(error).partition("\n\n")[0]))
            remedy = UNSAFE_NAME_REMEDY if isinstance(error, InvalidPathError) else _REMEDY
            raise KitError(f"{where}: {reason[:1000]}", remedy) from error


def s3_store(address: str, environment: Mapping[str, str]) -> BucketStore:
    """Return the store at `s3://<bucket>/<prefix>`, with endpoint and keys from the environment.

    Raises:
        KitError: the bucket or an environment variable is missing, or the endpoint has no TLS and isn't on the loopback
            interface.
    """
    parts = urlsplit(address)
    required = ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    missing = [name for name in required if not environment.get(name)]
    if missing or not parts.netloc:
        what = f"Set {', '.join(missing)}." if missing else "An address reads s3://<bucket>/<prefix>."
        raise KitError(f"{address} can't be used as a store of results.", what)
    endpoint = urlsplit(environment["AWS_ENDPOINT_URL_S3"])
    local = endpoint.hostname in _LOOPBACK
    if endpoint.scheme != "https" and not local:
        raise KitError(f"{endpoint.geturl()} is no https address.", "Results and signatures need TLS.")
    settings: S3Config = {
        "endpoint": endpoint.geturl().rstrip("/"),
        "region": environment["AWS_REGION"],
        "access_key_id": environment["AWS_ACCESS_KEY_ID"],
        "secret_access_key": environment["AWS_SECRET_ACCESS_KEY"],
        "virtual_hosted_style_request": False,
    }
    if environment.get("AWS_SESSION_TOKEN"):
        settings["session_token"] = environment["AWS_SESSION_TOKEN"]
    bucket = S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        config=settings,
        client_options={"allow_http": local, "connect_timeout": CONNECT_TIMEOUT, "timeout": TRANSFER_TIMEOUT},
        retry_config={"max_retries": 3, "retry_timeout": RETRY_TIMEOUT},
    )
    return BucketStore(bucket, address.rstrip("/"))
