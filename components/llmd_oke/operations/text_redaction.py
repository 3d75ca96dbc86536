"""Redaction of texts and documents.

Removed are values whose key or variable has the name of a secret (`HF_TOKEN=…`, `password: …`), and, whatever their
name, tokens of known forms, signed and pre-authenticated URLs, and private keys.
"""

import re

from pydantic import JsonValue

HIDDEN = "[redacted]"

_NAMES = (
    r"token(?!s|iz)|secret|passw|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential|cookie|"
    r"authorization|encryptionsalt|encryptedkey"
)
_SECRET_NAME = re.compile(rf"(?i){_NAMES}|^secure$")

_VALUE = r"(?!\d+(\.\d+)?\b|\[)[^\s\"',;&\\]{4,}"
"""Value behind a secret's name: not a number, and not redacted already."""

_FORMS = (  # all take linear time: logs may have lines of any length
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"\b(hf_|pul-|ghp_|github_pat_|sk-)[\w-]{8,}"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), HIDDEN),  # JSON Web Tokens
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?i)(://)[^/\s:@]{1,99}:[^/\s@]{1,999}@"), rf"\1{HIDDEN}@"),
    (re.compile(r"/p/[\w-]{16,}(?=/n/)"), f"/p/{HIDDEN}"),  # pre-authenticated requests of Object Storage
    (re.compile(r"(?i)([?&](x-amz-signature|x-amz-credential|sig|signature)=)[^&\s\"']+"), rf"\1{HIDDEN}"),
    (
        re.compile(rf"(?i)(({_NAMES})[\w.-]{{0,40}}\\?[\"']?\s{{0,4}}[=:]\s{{0,4}}\\?[\"']?){_VALUE}"),
        rf"\1{HIDDEN}",
    ),
)


def redact_text(text: str) -> str:
    """Return a text in which everything that looks like a secret is replaced by `HIDDEN`."""
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def redact(value: JsonValue) -> JsonValue:
    """Return a document without secrets: values are replaced if the name of their key or environment variable is that
    of a secret, and texts are redacted by `redact_text`.
    """
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, list):
        return [redact(item) for item in value]
    if isinstance(value, dict):
        is_variable = _SECRET_NAME.search(str(value.get("name", ""))) is not None
        redacted: dict[str, JsonValue] = {}
        for key, item in value.items():
            is_secret = _SECRET_NAME.search(key) is not None or (key == "value" and is_variable)
            redacted[key] = HIDDEN if isinstance(item, str) and is_secret else redact(item)
        return redacted
    return value
