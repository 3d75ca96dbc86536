"""Serves tiny models over HTTP, by the paths of Hugging Face and of a bucket."""

from collections.abc import Sequence

from aiohttp import web

from llmd_oke.catalogue import Model
from llmd_oke.rehearsal.outside import tiny_models
from llmd_oke.rehearsal.outside.facts import Outside


class ModelSources:
    """Answers for the repositories and vocabularies of models; everything else is not found, as in the real places."""

    def __init__(self, facts: Outside, models: Sequence[Model]) -> None:
        self._facts = facts
        self._repositories = [model.repository for model in models]
        self._vocabularies = {model.vocabulary.file: model.vocabulary.bytes for model in models if model.vocabulary}

    def application(self) -> web.Application:
        """All routes."""
        app = web.Application()
        repository = "{owner}/{name}"
        app.router.add_get(f"/api/models/{repository}/revision/{{revision}}", self._revision)
        app.router.add_get(f"/api/models/{repository}/tree/{{commit}}", self._tree)
        app.router.add_get(f"/{repository}/resolve/{{commit}}/{{path:.+}}", self._file)
        app.router.add_get("/encodings/{path}", self._vocabulary)
        app.router.add_get(f"{self._facts.bucket}/", self._listing)
        app.router.add_get(f"{self._facts.bucket}/{{object:.+}}", self._object)
        return app

    async def _revision(self, request: web.Request) -> web.Response:
        return web.json_response({"sha": tiny_models.commit(self._repository(request), request.match_info["revision"])})

    async def _tree(self, request: web.Request) -> web.Response:
        return web.json_response(tiny_models.tree(self._repository(request), self._facts.files))

    async def _file(self, request: web.Request) -> web.Response:
        return self._content(self._repository(request), request.match_info["path"])

    async def _listing(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        return web.json_response(tiny_models.listing(self._repositories, self._facts.files, prefix))

    async def _object(self, request: web.Request) -> web.Response:
        owner, _, rest = request.match_info["object"].partition("/")
        if owner == "encodings":
            return self._vocabulary_content(rest)
        name, _, path = rest.partition("/")
        return self._content(f"{owner}/{name}", path)

    async def _vocabulary(self, request: web.Request) -> web.Response:
        return self._vocabulary_content(request.match_info["path"])

    def _vocabulary_content(self, file: str) -> web.Response:
        if file not in self._vocabularies:
            raise web.HTTPNotFound
        return web.Response(body=tiny_models.vocabulary(file, self._vocabularies[file]))

    def _repository(self, request: web.Request) -> str:
        repository = f"{request.match_info['owner']}/{request.match_info['name']}"
        if repository not in self._repositories:
            raise web.HTTPNotFound
        return repository

    def _content(self, repository: str, path: str) -> web.Response:
        if repository not in self._repositories or path not in self._facts.files:
            raise web.HTTPNotFound
        return web.Response(body=tiny_models.content(repository, path, self._facts.files[path]))
