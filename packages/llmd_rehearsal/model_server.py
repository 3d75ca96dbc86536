"""Program `python -m llmd_rehearsal.model_server`: stand-ins for Hugging Face and Object Storage.

It serves tiny models at the URL paths of both until SIGTERM or SIGINT.
"""

import argparse
import asyncio
import logging
import signal
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler
from llmd_oke import catalogue
from llmd_oke.catalogue import CatalogueModel, open_project
from llmd_pods.prewarm.places import ENCODINGS

from llmd_rehearsal import model_sources
from llmd_rehearsal.model_sources import PORT, SourceHosts, source_hosts
from llmd_rehearsal.source_credentials import ValidCredentials


class ModelSources:
    """HTTP handlers that stand in for Hugging Face and Object Storage: models' repositories and vocabularies; all other
    paths get status 404, as at the real hosts.
    """

    def __init__(
        self,
        hosts: SourceHosts,
        models: Callable[[], Sequence[CatalogueModel]],
        folders: Mapping[str, Path] | None = None,
        valid: Path | None = None,
    ) -> None:
        """Set the hosts, the function that returns the served models, and the folders with real files.

        `models` is called at each request, because an update of the stack may add a model. `folders` maps repositories
        to folders with the files to serve in place of synthetic ones, and `encodings` to the folder of the published
        vocabularies. `valid` is the file with the valid credentials, read at each request; if None, all are valid.
        Requests without a token are answered, as Hugging Face does for models that aren't gated.
        """
        self._hosts = hosts
        self._models = models
        self._folders = folders or {}
        self._valid = valid

    @property
    def _repositories(self) -> list[str]:
        """Repositories of models, and of what drafts for them."""
        models = self._models()
        drafts = [model.draft.repository for model in models if model.draft and model.draft.repository]
        return [*(model.repository for model in models), *drafts]

    def application(self) -> web.Application:
        """Return the web application that serves repositories, vocabularies and the bucket."""
        application = web.Application(middlewares=[self._with_valid_credentials])
        bucket = self._hosts.bucket_path("{request}")
        application.add_routes([
            web.get("/api/models/{owner}/{name}/revision/{revision}", self._revision),
            web.get("/api/models/{owner}/{name}/tree/{commit}", self._tree),
            web.get("/{owner}/{name}/resolve/{commit}/{path:.+}", self._file),
            web.get("/encodings/{path}", self._vocabulary),
            web.get(f"{bucket}/", self._listing),
            web.get(f"{bucket}/{{object:.+}}", self._object),
        ])  # fmt: skip
        return application

    @web.middleware
    async def _with_valid_credentials(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a token or a link that isn't valid as the real hosts do: Hugging Face with status 401, whatever is
        asked for (github.com/huggingface/sentence-transformers/issues/3436), Object Storage as if the bucket didn't
        exist (github.com/rosalexander/oci-object-storage-desktop/issues/5).
        """
        if self._valid is None:
            return await handler(request)
        valid = ValidCredentials.model_validate_json(self._valid.read_bytes())
        token, asked = request.headers.get("Authorization"), request.match_info.get("request")
        if token is not None and token.removeprefix("Bearer ") not in valid.tokens:
            return web.json_response({"error": "Invalid credentials in Authorization header"}, status=401)
        if asked is not None and asked not in valid.requests:
            what = "Either the bucket does not exist in the namespace or you are not authorized to access it"
            return web.json_response({"code": "BucketNotFound", "message": what}, status=404)
        return await handler(request)

    async def _revision(self, request: web.Request) -> web.Response:
        commit = model_sources.commit(self._repository(request), request.match_info["revision"])
        files = [{"rfilename": path} for path in self._paths(self._repository(request))]
        return web.json_response({"id": self._repository(request), "sha": commit, "siblings": files})

    async def _tree(self, request: web.Request) -> web.Response:
        return web.json_response(model_sources.tree(self._files(self._repository(request))))

    async def _file(self, request: web.Request) -> web.Response:
        repository = self._repository(request)
        commit = model_sources.commit(repository, request.match_info["commit"])
        response = self._content(repository, request.match_info["path"])
        response.headers["X-Repo-Commit"] = commit
        return response

    async def _listing(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        asked = [name for name in self._repositories if f"{name}/".startswith(prefix) or prefix.startswith(f"{name}/")]
        repositories = {name: self._files(name) for name in asked}
        return web.json_response(model_sources.listing(repositories, prefix))

    async def _object(self, request: web.Request) -> web.Response:
        owner, _, rest = request.match_info["object"].partition("/")
        if owner == "encodings":
            return self._vocabulary_content(rest)
        name, _, path = rest.partition("/")
        return self._content(f"{owner}/{name}", path)

    async def _vocabulary(self, request: web.Request) -> web.Response:
        return self._vocabulary_content(request.match_info["path"])

    def _vocabulary_content(self, file: str) -> web.Response:
        vocabularies = (model.vocabulary for model in self._models() if model.vocabulary)
        size = next((vocabulary.bytes for vocabulary in vocabularies if vocabulary.file == file), None)
        if size is None:
            raise web.HTTPNotFound
        if folder := self._folders.get(ENCODINGS):
            return web.Response(body=(folder / file).read_bytes())
        return web.Response(body=model_sources.vocabulary(file, size))

    def _repository(self, request: web.Request) -> str:
        repository = f"{request.match_info['owner']}/{request.match_info['name']}"
        revision = request.match_info.get("revision") or request.match_info["commit"]
        if repository not in self._repositories and not model_sources.COMMIT.fullmatch(revision):
            raise web.HTTPNotFound
        return repository

    def _files(self, repository: str) -> dict[str, bytes]:
        """Return the contents of a repository's files by path: from the repository's folder, or else synthetic."""
        return {path: self._bytes(repository, path) for path in self._paths(repository)}

    def _paths(self, repository: str) -> list[str]:
        folder = self._folders.get(repository)
        if folder:
            return sorted(path.name for path in folder.iterdir())
        return list(self._sizes(repository))

    def _sizes(self, repository: str) -> Mapping[str, int]:
        """Return the sizes in bytes of a repository's synthetic files by path: a model's files, or an adapter's."""
        return self._hosts.files if repository in self._repositories else model_sources.ADAPTER_FILES

    def _bytes(self, repository: str, path: str) -> bytes:
        folder = self._folders.get(repository)
        if folder:
            return (folder / path).read_bytes()
        return model_sources.content(repository, path, self._sizes(repository)[path])

    def _content(self, repository: str, path: str) -> web.Response:
        if path not in self._paths(repository):
            raise web.HTTPNotFound
        content = self._bytes(repository, path)
        return web.Response(body=content, headers={"ETag": f'"{model_sources.digest(path, content)}"'})


def _models(project: Path | None) -> Sequence[CatalogueModel]:
    """Return all models of the kit's and the project's catalogue as they are at present."""
    open_project(project)
    models = (catalogue.model(name) for name in catalogue.model_names())
    return [model for model in models if model]


async def serve(
    address: str,
    context: ssl.SSLContext,
    project: Path | None,
    folders: Mapping[str, Path] | None = None,
    valid: Path | None = None,
) -> None:
    """Serve the model repositories of the kit's and the project's catalogue, in place of Hugging Face and Object
    Storage, until SIGTERM or SIGINT.

    `folders` maps repositories to folders with the files to serve; `valid` is the file with the valid credentials.

    Raises:
        OSError: the address can't be bound.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    sources = ModelSources(source_hosts(), partial(_models, project), folders, valid)
    runner = web.AppRunner(sources.application(), access_log_format='%s "%r"')
    await runner.setup()
    await web.TCPSite(runner, address, PORT, ssl_context=context).start()
    await stop.wait()
    await runner.cleanup()


def main() -> None:
    """Serve the stand-ins for Hugging Face and Object Storage at the address, and with the certificate, that the
    command line names.
    """
    parser = argparse.ArgumentParser(prog="llmd_rehearsal.model_server", description=__doc__)
    parser.add_argument("--address", required=True, help="address that the hosts' names lead to")
    parser.add_argument("--project", type=Path, help="folder of the project whose own values/ count too")
    parser.add_argument("--certificate", type=Path, required=True, help="PEM file for all of the hosts")
    parser.add_argument("--key", type=Path, required=True, help="its private key")
    parser.add_argument("--files", type=Path, nargs=2, action="append", default=[], help="a repository and its folder")
    parser.add_argument("--valid", type=Path, help="JSON file with the valid credentials; all are valid without")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(arguments.certificate, arguments.key)
    folders = {str(repository): folder for repository, folder in arguments.files}
    asyncio.run(serve(arguments.address, context, arguments.project, folders, arguments.valid))


if __name__ == "__main__":
    main()
