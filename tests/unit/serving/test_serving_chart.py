"""Helm as the kit calls it."""

import pytest
from llmd_oke import catalogue
from llmd_oke.errors import KitError
from llmd_oke.serving.chart import render_chart

CHART = catalogue.release("llm-d-0.7.0").chart


def helm(folder, script):
    program = folder / "helm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def no_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def fake_path(monkeypatch, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    return folder


def test_a_missing_helm_is_named_with_where_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KitError, match="`helm` is not on PATH") as error:
        render_chart(CHART, "r", "n", "{}")
    assert "helm.sh" in error.value.remedy


def test_what_helm_says_reaches_the_user(no_cache, fake_path):
    helm(fake_path, "echo 'no such value' >&2; exit 1")
    with pytest.raises(KitError, match="no such value"):
        render_chart(CHART, "r", "n", "{}")


def test_without_the_module_the_chart_is_pulled_in_its_version(no_cache, fake_path):
    helm(fake_path, 'echo "args: [$(printf "\\"%s\\"," "$@")]"')
    (told,) = render_chart(CHART, "r", "n", "{}")
    assert told["args"][:5] == ["template", "r", CHART.oci, "--version", CHART.version]
    assert told["args"][5:7] == ["--namespace", "n"]


def test_empty_documents_are_left_out(no_cache, fake_path):
    helm(fake_path, "printf -- '---\\n# nothing\\n---\\nkind: A\\n---\\n'")
    assert render_chart(CHART, "r", "n", "{}") == [{"kind": "A"}]


def test_a_read_only_module_is_rendered_from_a_copy_with_its_library(monkeypatch, tmp_path, fake_path):
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "cache"))
    charts = tmp_path / "cache" / "modules" / f"{CHART.module}@{CHART.version}" / "config" / "charts"
    for name, text in {"standalone": "dependencies: [{name: lib, repository: 'file://../lib'}]", "lib": "{}"}.items():
        (charts / name).mkdir(parents=True)
        (charts / name / "Chart.yaml").write_text(text)
        (charts / name).chmod(0o555)
    helm(fake_path, 'echo "library: $(cat "$3/charts/lib/Chart.yaml")"; echo "mode: \'$(stat -c %A "$3")\'"')
    (told,) = render_chart(CHART, "r", "n", "{}")
    assert told["library"] == {}
    assert told["mode"].startswith("drwx")
