from pathlib import Path

from llmd_oke.rehearsal import namespaces


def test_nothing_that_leads_to_a_cloud_a_cluster_or_a_proxy_gets_into_a_world(monkeypatch):
    for name in ("OCI_CLI_PROFILE", "KUBECONFIG", "PULUMI_ACCESS_TOKEN", "HTTPS_PROXY", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "real")
    monkeypatch.setenv("PATH", "/home/user/bin")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    environment = namespaces.environment(Path("/state/home"))
    assert set(environment) <= {"HOME", "LANG", "LC_ALL", "PATH", "PYTHONUNBUFFERED", "TZ"}
    assert environment["HOME"] == "/state/home"
    assert environment["PATH"] == namespaces.PATH


def test_without_root_a_user_namespace_is_made_and_entered():
    assert "--user" not in namespaces.create_command(["true"], user_namespace=False)
    assert "--map-root-user" in namespaces.create_command(["true"], user_namespace=True)
    assert "--user" in namespaces.enter_command(7, ["true"], Path("/"), user_namespace=True)
