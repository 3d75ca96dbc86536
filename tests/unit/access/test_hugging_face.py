from collections.abc import Callable

import httpx2
import pytest
from llmd_base.errors import KitError
from llmd_oke.access import hugging_face
from llmd_oke.access.hugging_face import ModelFile, download_model_files

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Answer = Callable[[httpx2.Request], httpx2.Response]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)


def download(
    answer: Answer, repository: str = "acme/large", revision: str = "main"
) -> tuple[ModelFile, ModelFile | None]:
    return download_model_files(repository, revision, httpx2.Client(transport=httpx2.MockTransport(answer)))


def files(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, headers={"x-repo-commit": COMMIT}, content=request.url.path.encode())


def refusal(answer: Answer, repository: str = "acme/large", revision: str = "main") -> str:
    with pytest.raises(KitError) as caught:
        download(answer, repository, revision)
    return str(caught.value)


def test_the_weights_index_is_read_at_the_configs_commit_unless_weights_are_one_file():
    config, index = download(files)
    assert config.address == "https://huggingface.co/acme/large/resolve/main/config.json"
    assert config.commit == COMMIT
    assert index is not None
    assert index.content == f"/acme/large/resolve/{COMMIT}/model.safetensors.index.json".encode()
    _, index = download(lambda request: httpx2.Response(404) if "index" in request.url.path else files(request))
    assert index is None


def test_a_configured_mirror_is_used_instead_of_hugging_face(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/hf/")
    assert download(files)[0].address.startswith("https://mirror.example/hf/acme/large/resolve/")


@pytest.mark.parametrize("endpoint", ["ftp://mirror.example", "mirror", "https://user:secret@mirror.example"])
def test_an_invalid_mirror_is_refused_without_showing_its_password(endpoint: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    told = refusal(files)
    assert "HF_ENDPOINT" in told
    assert "secret" not in told


def test_a_hugging_face_token_is_sent_only_to_the_hub_itself_and_over_tls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    seen: list[tuple[str, str | None]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.url.host, request.headers.get("authorization")))
        if request.url.host == "huggingface.co":
            return httpx2.Response(302, headers={"location": f"https://cdn.example{request.url.path}"})
        return files(request)

    download(answer)
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example")
    download(answer)
    redirected = [("huggingface.co", "Bearer hf_secret"), ("cdn.example", None)]
    assert seen == redirected * 2 + [("mirror.example", None)] * 2


@pytest.mark.parametrize("status", [401, 403])
def test_the_error_for_a_gated_model_says_how_to_pass_a_token(status: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    told = refusal(lambda _: httpx2.Response(status))
    assert "HF_TOKEN" in told
    assert "hf_secret" not in told


def test_the_error_for_an_unreachable_hub_says_how_to_add_a_model_offline():
    def unreachable(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("no route", request=request)

    told = refusal(unreachable)
    assert "https://huggingface.co can't be reached" in told
    assert "llmd-oke model add config.json --index model.safetensors.index.json --repository acme/large" in told


@pytest.mark.parametrize(("status", "words"), [(503, "is answered with 503"), (404, "has no config.json at main")])
def test_a_failed_request_and_a_repository_without_a_config_are_refused(status: int, words: str):
    assert words in refusal(lambda _: httpx2.Response(status))


def test_an_oversized_model_config_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hugging_face, "LONGEST_CONFIG_BYTES", 2**20)
    assert "more than 1 MiB" in refusal(lambda _: httpx2.Response(200, content=b"x" * (2**20 + 1)))


REPOSITORIES = ("large", "acme/", "../etc/passwd", "acme/..", "acme/a/b", "acme/a?b", "a b/c", "")
REVISIONS = ("../main", "a/../b", "main?x", "", "a b")


@pytest.mark.parametrize(
    ("repository", "revision"),
    [*((name, "main") for name in REPOSITORIES), *(("acme/large", revision) for revision in REVISIONS)],
)
def test_an_invalid_hugging_face_repository_or_revision_is_never_requested(repository: str, revision: str):
    wrong = "revision" if repository == "acme/large" else "repository of Hugging Face"
    assert wrong in refusal(files, repository, revision)
