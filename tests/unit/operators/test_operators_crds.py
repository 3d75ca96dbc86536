"""Definitions that an add-on makes are waited for, and named when they don't come."""

import ssl
from typing import Any, cast

import httpx2
import pulumi
import pulumi.runtime
import pytest
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.models.apiextensions_v1 import CustomResourceDefinitionStatus
from lightkube.models.meta_v1 import Status
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from llmd_base.errors import KitError
from llmd_oke.catalogue.serving import leader_worker_sets, scaling
from llmd_oke.operations.status import reading
from llmd_oke.operators import crds

SPEC = {"group": "g", "names": {"kind": "K", "plural": "ks"}, "scope": "Namespaced", "versions": []}


class Cluster:
    """Answers in turn: nothing yet (404), not yet established, established; the last for ever."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def get(self, kind: Any, name: str) -> Any:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            raise ApiError(status=Status(code=answer, message="no"))
        conditions = [{"type": "Established", "status": answer}]
        matches = CustomResourceDefinition.from_dict({"metadata": {"name": name}, "spec": SPEC})
        matches.status = CustomResourceDefinitionStatus.from_dict({"conditions": conditions})
        return matches


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(crds, "POLL_S", 0.001)


async def wait(cluster, limit_s=10.0):
    await crds._wait(["ippools.nv-ipam.nvidia.com"], limit_s, cast("Any", cluster))


async def test_a_crd_is_waited_for_until_it_is_established():
    cluster = Cluster(404, 503, "False", "True")
    await wait(cluster)
    assert cluster.asked == 4


async def test_the_error_for_a_crd_that_does_not_appear_in_time_names_crd_and_remedy():
    with pytest.raises(KitError, match=r"no definition of ippools.nv-ipam.nvidia.com after 0 s"):
        await wait(Cluster(404), 0)
    with pytest.raises(KitError) as refused:
        await crds._wait(["scaledobjects.keda.sh"], 0, cast("Any", Cluster(404)), scaling().remedy)
    assert refused.value.remedy == scaling().remedy
    assert "scale.md" in scaling().remedy


async def test_a_user_who_may_not_read_crds_gets_an_error_instead_of_a_wait():
    with pytest.raises(KitError, match="refuses to show custom resource definitions") as refused:
        await wait(Cluster(403))
    assert refused.value.remedy == crds.RIGHT


async def test_the_error_for_a_cluster_that_never_answers_about_crds_has_the_last_error():
    with pytest.raises(KitError, match=r"can't be asked for ippools.* after 0 s: connection refused") as late:
        await wait(Cluster(httpx2.ConnectError("connection refused")), 0)
    assert late.value.remedy == crds.WAY


async def test_an_untrusted_certificate_ends_the_wait_for_crds():
    error = httpx2.ConnectError("handshake")
    error.__cause__ = ssl.SSLCertVerificationError("certificate verify failed")
    with pytest.raises(KitError, match=r"certificate is not trusted: certificate verify failed\."):
        await wait(Cluster(error))


@pytest.mark.parametrize(
    "error",
    [ConfigError("Exec llmd-oke returned 1: error There is no profile X"), FileNotFoundError(2, "No such file", "it")],
)
async def test_missing_credentials_end_the_wait_for_crds_at_once(error: Exception):
    with pytest.raises(KitError, match="can't be signed in to") as refused:
        await wait(Cluster(error))
    assert str(error) in refused.value.message
    assert "PATH" in (refused.value.remedy or "")


class Webhooks(Cluster):
    """A cluster whose webhooks answer in turn: with a status, or with nothing where they admit; the last for ever."""

    async def create(self, offered: Any, namespace: str, *, dry_run: bool) -> None:
        self.asked += 1
        assert "post" in offered._api_info.verbs
        assert (offered.kind, namespace, dry_run) == ("LeaderWorkerSet", "llm-d", True)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is not None:
            raise ApiError(status=Status(code=answer, message="failed calling webhook"))


async def offer(cluster: Webhooks, limit_s: int = 10) -> None:
    sets = leader_worker_sets()
    assert sets.admission is not None
    admission = sets.admission.model_copy(update={"timeout_s": limit_s})
    await crds._wait_for_webhooks(sets.names[0], admission, "llm-d", cast("Any", cluster))


async def test_webhooks_are_waited_for_in_a_process_that_has_a_status_too():
    assert "get" in reading.LeaderWorkerSet._api_info.verbs
    await offer(Webhooks(None))


@pytest.mark.parametrize("answer", [None, 403, 422])
async def test_webhooks_of_leaderworkersets_are_waited_for_until_they_answer(answer: int | None):
    cluster = Webhooks(*[404] * crds.OFFERS, None, 500, *[answer] * crds.OFFERS)  # one of two pods answers, then both
    await offer(cluster)
    assert cluster.asked == 3 * crds.OFFERS


async def test_the_error_for_webhooks_that_never_answer_says_what_the_cluster_said():
    with pytest.raises(KitError, match="admits no LeaderWorkerSet after 0 s: failed calling webhook") as late:
        await offer(Webhooks(500), 0)
    assert "lws-system" in (late.value.remedy or "")


async def test_the_output_of_waiting_for_crds_is_not_secret_though_the_kubeconfig_is():
    pulumi.runtime.set_mocks(NoResources())
    served = crds.when_established(["g"], 1, pulumi.Output.secret("kubeconfig"))
    assert await served.is_secret() is False


class NoResources(pulumi.runtime.Mocks):
    """Mocks that register and call nothing."""

    def new_resource(self, args: Any) -> tuple[str, dict[str, Any]]:
        raise NotImplementedError

    def call(self, args: Any) -> dict[str, Any]:
        raise NotImplementedError
