"""Stand-in for a private container registry: tells who may pull, and that it has every image, but has no content.

Requests follow the OCI Distribution Specification and distribution's token specification
(https://distribution.github.io/distribution/spec/auth/token/), as far as a container runtime asks before it downloads.

Run by `python -m llmd_rehearsal.registry --port PORT --accounts FILE`. FILE is JSON with the passwords that each user
has at present, `{"user": ["password", …]}`; it is read at each request, so that a password is revoked at once.
"""

import argparse
import json
import secrets
from pathlib import Path
from typing import cast

from aiohttp import BasicAuth, web

REALM = "/token"
_SERVICE = "private-registry"


class Registry:
    """Registry that gives manifests to the users of an accounts file, by tokens that count for one request."""

    def __init__(self, accounts: Path) -> None:
        self._accounts = accounts
        self._tokens: set[str] = set()

    def application(self) -> web.Application:
        """Return the web application with the registry's paths and that of its token service."""
        application = web.Application()
        application.add_routes([
            web.get(REALM, self._token),
            web.get("/v2/{name:.+}/manifests/{reference}", self._manifest),  # HEAD too
        ])  # fmt: skip
        return application

    async def _token(self, request: web.Request) -> web.Response:
        known: dict[str, list[str]] = json.loads(self._accounts.read_text())
        try:
            decoded = BasicAuth.decode(request.headers.get("Authorization", ""))
        except ValueError:
            raise web.HTTPUnauthorized from None
        login, password, _ = cast("tuple[str, str, str]", decoded)
        if password not in known.get(login, ()):
            raise web.HTTPUnauthorized
        token = secrets.token_urlsafe(16)
        self._tokens.add(token)
        return web.json_response({"token": token, "expires_in": 60})

    async def _manifest(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token in self._tokens:
            self._tokens.remove(token)
            return web.Response(headers={"Docker-Distribution-Api-Version": "registry/2.0"})
        realm = f"{request.scheme}://{request.host}{REALM}"
        scope = f"repository:{request.match_info['name']}:pull"
        asked = f'Bearer realm="{realm}",service="{_SERVICE}",scope="{scope}"'
        errors = {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}
        return web.json_response(errors, status=401, headers={"WWW-Authenticate": asked})


def main() -> None:
    """Serve the registry on the loopback address until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--accounts", type=Path, required=True)
    given = parser.parse_args()
    web.run_app(Registry(given.accounts).application(), host="127.0.0.1", port=given.port, print=None)


if __name__ == "__main__":
    main()
