"""Envoy's configuration that authenticates the clients of a stack's front door: API keys, or tokens of one issuer."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from llmd_oke.serving import client_access, envoy
from llmd_oke.serving.client_access import CLIENT_HEADER
from llmd_oke.serving.envoy_bounds import bounds
from llmd_oke.serving.model_envoy import Config, typed

_KEY_SET = "key-set"
_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
"""CA certificates in Envoy's image, which is based on a distroless image of Debian."""


def api_keys(*keys: Mapping[str, str]) -> str:
    """Return the content of the file by which Envoy authenticates clients by API keys. It has only digests of the keys.

    Args:
        keys: API keys by the clients' names, and further keys of the same clients.
    """
    digests = [(client, client_access.key_digest(key)) for of_clients in keys for client, key in of_clients.items()]
    return envoy.resources_file([envoy.extension(client_access.keys_filter(digests))])


def tokens(issuer: str, audiences: Sequence[str], key_set: str | None, key_set_uri: str | None = None) -> str:
    """Return the content of the file by which Envoy authenticates clients by JSON Web Tokens of one issuer for one of
    the audiences.

    Args:
        issuer: issuer of the tokens.
        audiences: audiences, one of which a token must name.
        key_set: JSON Web Key Set with the keys that sign the tokens.
        key_set_uri: URI of the key set to fetch instead.
    """
    provider = {
        "issuer": issuer,
        "audiences": list(audiences),
        **({"local_jwks": {"inline_string": key_set}} if key_set_uri is None else _fetched(key_set_uri)),
        "require_expiration": True,
        "claim_to_headers": [{"header_name": CLIENT_HEADER, "claim_name": "sub"}],
    }
    rules = [{"match": {"prefix": "/"}, "requires": {"provider_name": "issuer"}}]
    return envoy.resources_file(
        [
            envoy.extension(
                {
                    **typed("filters.http.jwt_authn.v3.JwtAuthentication"),
                    "providers": {"issuer": provider},
                    "rules": rules,
                }
            )
        ]
    )


def _fetched(uri: str) -> Config:
    """Return the settings of a key set that Envoy fetches periodically; the last one stays valid while
    fetching fails.
    """
    most = bounds()
    return {
        "remote_jwks": {
            "http_uri": {"uri": uri, "cluster": _KEY_SET, "timeout": f"{most.key_set_timeout_s}s"},
            "cache_duration": f"{most.key_set_s}s",
            "async_fetch": {"fast_listener": True, "failed_refetch_duration": f"{most.key_set_retry_s}s"},
            "retry_policy": {"num_retries": 2},
        }
    }


def key_set_address(uri: str) -> tuple[str, int]:
    """Return host and port of a key set's URI."""
    parts = urlsplit(uri)
    return parts.hostname or "", parts.port or 443


def key_set_cluster(uri: str) -> Config:
    """Return the Envoy cluster from which a token issuer's key set at `uri` is fetched, over TLS. The server's
    certificate must be for the URI's host, from a CA that Envoy's image trusts.
    """
    host, port = key_set_address(uri)
    context = {
        "sni": host,
        "common_tls_context": {
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "validation_context": {
                "trusted_ca": {"filename": _AUTHORITIES},
                "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": host}}],
            },
        },
    }
    kind = typed("transport_sockets.tls.v3.UpstreamTlsContext")
    end = {"endpoint": {"address": envoy.socket_address(host, port)}}
    return {
        "name": _KEY_SET,
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "connect_timeout": f"{bounds().key_set_timeout_s}s",
        "per_connection_buffer_limit_bytes": 1024 * 1024,
        "load_assignment": {"cluster_name": _KEY_SET, "endpoints": [{"lb_endpoints": [end]}]},
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": {**kind, **context}},
    }
