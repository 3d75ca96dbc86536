import json
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from uuid import uuid4

import pytest
from certificates_for_tests import certificate, private_key
from llmd_base.errors import InvalidStack
from llmd_oke.planning import front_door_secrets
from llmd_oke.planning.front_door_secrets import Certificate, end_warning, read_secrets
from llmd_oke.planning.plan import FrontDoorPlan
from stack_files import plan

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ALICE, BOB, NEXT = "sk-alice-Qm7xT2vKd9RwZb4H", "sk-bob-Wc3nY8fLs6JpXe5G", "sk-next-Hd5kV9bMq2TzXc7R"
HOST = "llm.example.com"


def door(**keys: object) -> FrontDoorPlan:
    result = plan(frontDoor=keys, networkPolicies={"engine": "existing"}).front_door
    assert result is not None
    return result


JWT_KINDS = {"kind": "jwt", "issuer": "https://id.example.com", "audiences": ["llm"]}
KEYS = door(authentication={"kind": "api-keys"}, limits={"requestsPerMinute": 60})
JWT = door(authentication=JWT_KINDS)
SALTED = door(authentication=JWT_KINDS, cacheIsolation="client")
KEY_SET = {"keys": [{"kty": "RSA"}]}
TLS = door(host=HOST, tls={"kind": "config"})


@cache
def key():
    return private_key()


def refused(front_door: FrontDoorPlan, **settings: object) -> dict[str, str]:
    """Problems by path; a text of the config, or an object as JSON."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    try:
        read_secrets(front_door, texts, NOW)
    except InvalidStack as error:
        return {problem.path: str(problem) for problem in error.problems}
    return {}


def pair(end: timedelta = timedelta(days=30), host: str = HOST) -> dict[str, str]:
    """A certificate that ends so long from now, with its key."""
    return {"chain": certificate(key(), host, NOW + end).chain, "key": key().pem}


def test_different_front_door_api_keys_of_two_clients_and_a_next_one_are_accepted():
    assert refused(KEYS, frontDoorKeys={"alice": ALICE, "bob": BOB}) == {}
    assert refused(KEYS, frontDoorKeys={"alice": ALICE, "bob": BOB}, frontDoorNextKeys={"alice": NEXT}) == {}


def test_an_api_key_of_two_front_door_clients_is_refused_without_showing_it():
    result = refused(KEYS, frontDoorKeys={"alice": ALICE, "bob": ALICE})
    assert list(result) == ["llmd-oke:frontDoorKeys.bob"]
    assert ALICE not in str(result)


@pytest.mark.parametrize(("days", "told"), [(13.5, "ends in 13 days (2026-06-14)"), (14, None)])
def test_an_update_warns_of_a_front_door_certificate_that_expires_soon(days: float, told: str | None):
    warning = end_warning(Certificate(**pair(timedelta(days=days))), NOW)
    assert (told in warning) if told and warning else warning is told


@pytest.mark.parametrize(
    ("next_keys", "why"),
    [
        ({"alice": ALICE}, "it is the client's present key"),
        ({"alice": BOB}, "bob has the same key"),
        ({"alice": "a" * 40}, "can be guessed"),
        ({"carol": NEXT}, "no client of this name has a key"),
    ],
)
def test_unusable_next_api_keys_of_front_door_clients_are_refused(next_keys: dict[str, str], why: str):
    result = refused(KEYS, frontDoorKeys={"alice": ALICE, "bob": BOB}, frontDoorNextKeys=next_keys)
    assert list(result) == [f"llmd-oke:frontDoorNextKeys.{name}" for name in next_keys]
    assert why in next(iter(result.values()))


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({}, "llmd-oke:frontDoorKeys"),
        ({"alice": "short"}, "llmd-oke:frontDoorKeys.alice"),
        ({"alice": "a" * 40}, "llmd-oke:frontDoorKeys.alice"),
        ({"alice": "sk-alice-0123456789abcdefghij"}, "llmd-oke:frontDoorKeys.alice"),
        ({"alice": "secret-secret-secret-secret-secret"}, "llmd-oke:frontDoorKeys.alice"),
        ({"alice": ALICE + " blank"}, "llmd-oke:frontDoorKeys.alice"),
        ({"alice\r\nx": ALICE}, "llmd-oke:frontDoorKeys.alice\r\nx"),
    ],
)
def test_missing_short_or_guessable_front_door_api_keys_are_refused(keys: dict[str, str], path: str):
    assert list(refused(KEYS, frontDoorKeys=keys)) == [path]


@pytest.mark.parametrize("key", ["Qm7xT2vKd9RwZb4HcN8y", "abdeghjkmnpqstvwagmsdj"], ids=["20 characters", "56 bits"])
def test_a_front_door_api_key_needs_20_characters_and_56_bits(key: str):
    assert refused(KEYS, frontDoorKeys={"alice": key}) == {}
    assert list(refused(KEYS, frontDoorKeys={"alice": key[:-1]})) == ["llmd-oke:frontDoorKeys.alice"]


@pytest.mark.parametrize(
    "make", [lambda: secrets.token_hex(24), lambda: secrets.token_urlsafe(18), lambda: str(uuid4())]
)
def test_randomly_generated_front_door_api_keys_are_accepted(make: Callable[[], str]):
    assert [key for key in (make() for _ in range(200)) if refused(KEYS, frontDoorKeys={"alice": key})] == []


@pytest.mark.parametrize(
    "secret", ["", "short", "a" * 64, "0123456789" * 5, "with spaces and signs, which JSON escapes!"]
)
def test_a_weak_secret_for_cache_salts_is_refused(secret: str):
    result = refused(SALTED, frontDoorCacheSecret=secret, frontDoorKeySet=KEY_SET)
    assert list(result) == ["llmd-oke:frontDoorCacheSecret"]
    assert "openssl rand -hex 32" in result["llmd-oke:frontDoorCacheSecret"]


def test_a_secret_for_cache_salts_needs_32_characters_and_96_bits():
    secret = "abdeghjkmnpqstvwagmsdjpvbhnteqwk"
    for enough in (secret, secrets.token_hex(32)):
        assert refused(SALTED, frontDoorCacheSecret=enough, frontDoorKeySet=KEY_SET) == {}
    assert refused(SALTED, frontDoorCacheSecret=secret[:-1], frontDoorKeySet=KEY_SET)


def test_a_request_limit_for_a_front_door_client_without_an_api_key_is_refused():
    limits = {"requestsPerMinute": 60, "clients": {"carol": 6}}
    front_door = door(authentication={"kind": "api-keys"}, limits=limits)
    assert list(refused(front_door, frontDoorKeys={"alice": ALICE})) == ["frontDoor.limits.clients.carol"]


def test_an_identity_provider_with_jwksuri_needs_no_key_set_in_the_configuration():
    fetched = door(authentication={**JWT_KINDS, "jwksUri": "https://id.example.com/jwks.json"})
    assert refused(fetched) == {}


@pytest.mark.parametrize("keys", ["", "{}", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "[1]"])
def test_private_keys_of_an_identity_provider_are_refused(keys: str):
    assert list(refused(JWT, frontDoorKeySet=keys)) == ["llmd-oke:frontDoorKeySet"]
    assert refused(JWT, frontDoorKeySet='{"keys": [{"kty": "RSA", "n": "x", "e": "AQAB"}]}') == {}


def test_a_certificate_for_the_host_or_for_its_domain_is_accepted_with_its_key():
    for host in (HOST, "*.example.com"):
        assert refused(TLS, frontDoorCertificate=pair(host=host)) == {}


@pytest.mark.parametrize(("days", "date"), [(1, "2026-05-31"), (0, "2026-06-01")])
def test_an_expired_certificate_is_refused_with_its_date(days: int, date: str):
    result = refused(TLS, frontDoorCertificate=pair(-timedelta(days=days)))
    assert f"expired on {date}" in result["llmd-oke:frontDoorCertificate.chain"]


@pytest.mark.parametrize(("seconds", "paths"), [(0, []), (1, ["llmd-oke:frontDoorCertificate.chain"])])
def test_a_certificate_is_accepted_from_the_second_on_that_it_is_valid(seconds: int, paths: list[str]):
    assert list(refused(TLS, frontDoorCertificate=pair(timedelta(days=366, seconds=seconds)))) == paths


def test_another_certificates_key_and_a_certificate_of_another_host_are_refused():
    result = refused(TLS, frontDoorCertificate={**pair(), "key": private_key().pem})
    assert "another's key" in result["llmd-oke:frontDoorCertificate.key"]
    result = refused(TLS, frontDoorCertificate=pair(host="other.example.org"))
    assert f"not for {HOST}" in result["llmd-oke:frontDoorCertificate.chain"]


def test_a_missing_chain_or_private_key_of_a_front_door_certificate_is_reported():
    assert list(refused(TLS)) == ["llmd-oke:frontDoorCertificate.chain"]
    assert list(refused(TLS, frontDoorCertificate={"chain": pair()["chain"]})) == ["llmd-oke:frontDoorCertificate.key"]


@pytest.mark.parametrize(
    ("key", "bits"),
    [("ac", 2), ("ab", 1), ("aa", 0), ("abacacbd", 10), ("acegaceg", 14), ("acegacegc", 16), ("gkabgkab", 12)],
)
def test_counting_and_repeating_characters_add_nothing_to_a_keys_entropy(key: str, bits: float):
    assert front_door_secrets._chance_bits(key) == pytest.approx(bits)
