import pytest
from llmd_base.errors import KitError
from llmd_oke.access.sign_in import Auth, SignIn, auth_of_environment, of_provider
from llmd_oke.operations.pulumi_cli import run


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, SignIn()),
        ({"configFileProfile": "PROD"}, SignIn(None, "PROD")),
        ({"auth": "InstancePrincipal"}, SignIn(Auth.INSTANCE_PRINCIPAL)),
        ({"auth": "securitytoken", "configFileProfile": "S"}, SignIn(Auth.API_KEY, "S")),
        ({"auth": "OKEWorkloadIdentity"}, SignIn(Auth.WORKLOAD_IDENTITY)),
        ({"tenancyOcid": "t", "region": "r"}, SignIn()),
        ({"fingerprint": "f", "privateKey": True, "configFileProfile": "P"}, SignIn(None, "P")),
    ],
)
def test_the_oci_provider_and_cluster_access_use_the_same_authentication(config: dict[str, object], expected: SignIn):
    assert of_provider(config) == expected


def test_provider_settings_that_get_no_cluster_token_are_refused_with_others_that_do():
    with pytest.raises(KitError, match=r"oci:userOcid, oci:privateKey\).*\n.*oci:configFileProfile"):
        of_provider({"userOcid": "u", "privateKey": True})
    with pytest.raises(KitError, match=r"ResourcePrincipal.*\n.*InstancePrincipal"):
        of_provider({"auth": "ResourcePrincipal"})


def test_oci_authentication_settings_become_options_of_the_token_command():
    assert SignIn(Auth.API_KEY, "P").words == ["--auth", "api-key", "--profile", "P"]
    assert SignIn().words == []


@pytest.mark.parametrize(
    ("environment", "auth"),
    [
        ({}, Auth.API_KEY),
        ({"OCI_AUTH": "", "OCI_CLI_AUTH": ""}, Auth.API_KEY),
        ({"OCI_AUTH": "InstancePrincipal"}, Auth.INSTANCE_PRINCIPAL),
        ({"OCI_AUTH": "instanceprincipal", "OCI_CLI_AUTH": "instance_principal"}, Auth.INSTANCE_PRINCIPAL),
        ({"TF_VAR_auth": "OKEWorkloadIdentity"}, Auth.WORKLOAD_IDENTITY),
        ({"OCI_CLI_AUTH": "oke_workload_identity"}, Auth.WORKLOAD_IDENTITY),
        ({"OCI_CLI_AUTH": "security_token"}, Auth.API_KEY),
    ],
)
def test_the_oci_authentication_method_is_read_from_the_variables_that_pulumi_reads(
    environment: dict[str, str], auth: Auth
):
    assert auth_of_environment(environment) is auth


@pytest.mark.parametrize(
    "environment",
    [
        {"OCI_AUTH": "ApiKey", "OCI_CLI_AUTH": "instance_principal"},
        {"OCI_AUTH": "ApiKey", "TF_VAR_auth": "InstancePrincipal"},
    ],
)
def test_two_ways_to_sign_in_to_oci_are_refused_before_pulumi_runs(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(KitError, match="two ways to sign in"):
        auth_of_environment(environment)
    with pytest.raises(KitError, match="two ways to sign in"):
        run(["true"], capture=True)


def test_oci_cli_auth_is_passed_on_to_pulumis_oci_plug_in_as_oci_auth(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OCI_AUTH", raising=False)
    monkeypatch.setenv("OCI_CLI_AUTH", "instance_principal")
    assert run(["sh", "-c", "echo $OCI_AUTH"], capture=True).output == "InstancePrincipal\n"


@pytest.mark.parametrize("name", ["OCI_AUTH", "OCI_CLI_AUTH"])
def test_an_unsupported_authentication_method_is_refused_with_its_variable(name: str):
    with pytest.raises(KitError, match=f"{name}=ResourcePrincipal is no way"):
        auth_of_environment({name: "ResourcePrincipal"})
