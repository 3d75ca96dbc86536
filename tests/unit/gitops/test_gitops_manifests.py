"""Rendered objects as YAML."""

from typing import Any

import pytest
import yaml
from llmd_base.errors import KitError
from llmd_oke.gitops.manifests import KUSTOMIZATION, dump, files, helm_command, stream
from llmd_oke.gitops.rendering import ChartRelease, RenderedObject, Rendering, RequiredSecret

CHART = ChartRelease(
    wave=1,
    name="cert-manager",
    namespace="cert-manager",
    chart="oci://quay.io/jetstack/charts/cert-manager@sha256:" + "a" * 64,
    version="v1.19.1",
    repository=None,
    values={"crds": {"enabled": True}},
    timeout_s=600,
)


def config_map(name: str, wave: int = 0, **changes: Any) -> RenderedObject:
    metadata = {"name": name, "namespace": "llm-d", "annotations": {"own": "1"}}
    return RenderedObject(wave, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}, **changes)


def manifest(kind: str, wave: int, api_version: str = "v1") -> RenderedObject:
    return RenderedObject(wave, {"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}})


def rendering(*objects: RenderedObject, charts: tuple[ChartRelease, ...] = ()) -> Rendering:
    return Rendering("prod", objects, charts, (), ())


AMBIGUOUS = ["1234567e89", "1e3", "y", "N", "012", "1_000", ".5", "12:30", "true", "null", "~", ""]


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_rendered_yaml_quotes_texts_that_other_parsers_convert(text: str):
    assert dump({"a": text}) in {f"a: '{text}'\n", f'a: "{text}"\n'}


def test_rendered_yaml_has_block_scalars_and_does_not_wrap_long_lines():
    assert dump({"a": "one\ntwo\n"}) == "a: |\n  one\n  two\n"
    assert dump({"a": "word " * 100 + "end"}).count("\n") == 1


@pytest.mark.parametrize("value", [{"a": [{}, [], None, True, 1.5, " x ", "a: b", "é\n\t#"]}])
def test_rendered_yaml_is_read_back_equal_to_the_object(value: dict[str, Any]):
    assert yaml.safe_load(dump(value)) == value


def test_manifest_file_names_sort_by_wave_and_kustomize_keeps_their_order():
    written = files(rendering(config_map("a", 1), config_map("b", 0)))
    assert list(written) == [KUSTOMIZATION, "00a-configmap-llm-d-b.yaml", "01a-configmap-llm-d-a.yaml"]
    kustomization = yaml.safe_load(written[KUSTOMIZATION])
    assert kustomization["sortOptions"] == {"order": "fifo"}
    assert kustomization["resources"] == list(written)[1:]


def test_manifests_of_objects_that_pods_need_precede_the_pods_of_their_wave():
    kinds = ["Deployment", "Job", "DaemonSet", "ServiceAccount", "RoleBinding", "ConfigMap", "NetworkPolicy", "Role"]
    written = list(files(rendering(*(manifest(kind, 1) for kind in kinds))))[1:]
    assert {name.split("-")[1] for name in written[:5]} == {kind.lower() for kind in kinds[3:]}


def test_manifest_file_names_of_more_than_a_hundred_waves_sort_correctly():
    names = list(files(rendering(config_map("a", 9), config_map("b", 11), config_map("c", 100))))[1:]
    assert names == ["009a-configmap-llm-d-a.yaml", "011a-configmap-llm-d-b.yaml", "100a-configmap-llm-d-c.yaml"]


def test_argo_cd_gets_sync_waves_and_keeps_objects_that_outlive_the_stack():
    written = files(rendering(config_map("a", 3, outlives=True)), argo_cd=True)
    annotations = yaml.safe_load(written["03a-configmap-llm-d-a.yaml"])["metadata"]["annotations"]
    assert annotations == {
        "own": "1",
        "argocd.argoproj.io/sync-wave": "3",
        "argocd.argoproj.io/sync-options": "ServerSideApply=true,PruneLast=true,Prune=false",
    }


DRY_RUN = "SkipDryRunOnMissingResource=true"


@pytest.mark.parametrize(
    ("api_version", "wave", "skipped"),
    [
        ("amd.com/v1alpha1", 2, True),
        ("amd.com/v1alpha1", 1, False),
        ("rbac.authorization.k8s.io/v1", 2, False),
        ("apps/v1", 2, False),
        ("v1", 2, False),
    ],
)
def test_objects_of_crds_from_a_chart_of_the_same_sync_skip_argo_cds_dry_run(
    api_version: str, wave: int, skipped: bool
):
    written = files(rendering(manifest("Thing", wave, api_version), charts=(CHART,)), argo_cd=True)
    metadata = yaml.safe_load(written[f"0{wave}b-thing-a.yaml"])["metadata"]
    assert (DRY_RUN in metadata["annotations"]["argocd.argoproj.io/sync-options"].split(",")) == skipped


def test_a_rendered_objects_name_cannot_lead_out_of_the_folder():
    (_, name) = files(rendering(config_map("../a/b:c")))
    assert name == "00a-configmap-llm-d-.._a_b_c.yaml"


def test_rendering_two_objects_of_one_kind_and_name_is_refused():
    with pytest.raises(KitError, match="two objects ConfigMap a"):
        files(rendering(config_map("a"), config_map("a")))


def test_a_chart_is_rendered_as_a_values_file_and_a_helm_command():
    written = files(rendering(charts=(CHART,)))
    assert yaml.safe_load(written["helm-values-cert-manager.yaml"]) == CHART.values
    assert yaml.safe_load(written[KUSTOMIZATION])["resources"] == []
    assert helm_command(CHART, "out dir") == (
        f"helm upgrade --install cert-manager {CHART.chart} --version v1.19.1 --namespace cert-manager"
        " --values 'out dir/helm-values-cert-manager.yaml' --wait --timeout 600s"
    )


def test_a_chart_is_rendered_as_an_argo_cd_application():
    application = yaml.safe_load(files(rendering(charts=(CHART,)), argo_cd=True)["01b-application-cert-manager.yaml"])
    assert application["spec"]["source"] == {
        "repoURL": "quay.io/jetstack/charts",
        "chart": "cert-manager",
        "targetRevision": "v1.19.1",
        "helm": {"releaseName": "cert-manager", "valuesObject": CHART.values},
    }
    assert application["metadata"]["annotations"] == {"argocd.argoproj.io/sync-wave": "1"}


def test_manifests_written_to_one_stream_are_in_order_and_without_charts():
    text = stream(rendering(config_map("a", 1), config_map("b", 0)))
    assert [document["metadata"]["name"] for document in yaml.safe_load_all(text)] == ["b", "a"]
    with pytest.raises(KitError, match="no place for the values of charts"):
        stream(rendering(charts=(CHART,)))


def test_the_command_that_creates_a_secret_has_no_value_in_its_arguments():
    command = RequiredSecret("llm-d", "hf-token", "token", "huggingFaceToken").command("prod")
    assert command == (
        'printf %s "$(pulumi config get --stack prod llmd-oke:huggingFaceToken)"'
        " | kubectl create secret generic hf-token --namespace llm-d --from-file=token=/dev/stdin"
        " --dry-run=client --output yaml | kubectl apply --server-side -f -"
    )
