"""An API key: a profile of OCI's configuration file, as all of OCI's tools read it."""

import configparser
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from llmd_oke.access.signing import Signer
from llmd_oke.errors import KitError

DEFAULT_FILE = "~/.oci/config"
DEFAULT_PROFILE = "DEFAULT"


def config_file() -> Path:
    """The configuration file: `$OCI_CLI_CONFIG_FILE`, `$OCI_CONFIG_FILE` or `~/.oci/config`."""
    named = os.environ.get("OCI_CLI_CONFIG_FILE") or os.environ.get("OCI_CONFIG_FILE") or DEFAULT_FILE
    return Path(named).expanduser()


def profile_name() -> str:
    """The profile: `$OCI_CLI_PROFILE`, `$OCI_CONFIG_PROFILE` or `DEFAULT`."""
    return os.environ.get("OCI_CLI_PROFILE") or os.environ.get("OCI_CONFIG_PROFILE") or DEFAULT_PROFILE


def signer(file: Path | None = None, profile: str | None = None) -> Signer:
    """The signer of a profile: with an API key, or with the token of `oci session authenticate`.

    Raises:
        KitError: the file, the profile or its key can't be used; says which, never what is in them.
    """
    file, profile = file or config_file(), profile or profile_name()
    values = _profile(file, profile)
    where = f"profile {profile} of {file}"
    key = load_key(_read(values, "key_file", where), values.get("pass_phrase"), where)
    if values.get("security_token_file"):
        return Signer(f"ST${_read(values, 'security_token_file', where).strip()}", key)
    return Signer("/".join(_value(values, name, where) for name in ("tenancy", "user", "fingerprint")), key)


def load_key(pem: str, pass_phrase: str | None, where: str) -> RSAPrivateKey:
    """The RSA key in a PEM text.

    Raises:
        KitError: it is none, or its pass phrase is wrong or missing.
    """
    try:
        key = load_pem_private_key(pem.strip().encode(), pass_phrase.encode() if pass_phrase else None)
    except TypeError as error:
        raise KitError(f"The key of {where} needs a pass phrase.", "Give pass_phrase in the profile.") from error
    except ValueError as error:
        raise KitError(f"The key of {where} is no private key, or its pass phrase is wrong.") from error
    if not isinstance(key, RSAPrivateKey):
        raise KitError(f"The key of {where} is no RSA key.", "OCI takes RSA keys only.")
    return key


def _profile(file: Path, profile: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        found = parser.read(file)
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        raise KitError(f"{file} can't be read as OCI's configuration file.") from error
    if not found:
        remedy = "Run `oci setup config`, or choose --auth instance-principal or workload-identity."
        raise KitError(f"There is no OCI configuration file {file}.", remedy)
    if profile != DEFAULT_PROFILE and not parser.has_section(profile):
        known = ", ".join([DEFAULT_PROFILE, *parser.sections()])
        raise KitError(f"{file} has no profile {profile}.", f"Profiles: {known}.")
    return dict(parser[profile])


def _value(values: dict[str, str], name: str, where: str) -> str:
    if not values.get(name):
        raise KitError(f"There is no {name} in {where}.")
    return values[name].strip()


def _read(values: dict[str, str], name: str, where: str) -> str:
    path = Path(_value(values, name, where)).expanduser()
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise KitError(f"The {name} of {where}, {path}, can't be read.") from error
