"""Identifiers and secrets, in the forms the E2B SDKs accept."""

from __future__ import annotations

import re
import secrets
import string
import uuid

_ALPHABET = string.ascii_lowercase + string.digits
_SANDBOX_ID = re.compile(r"[a-z0-9]{1,40}")
_NAME = re.compile(r"[a-z0-9_-]{1,128}")


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def new_sandbox_id() -> str:
    """`i` and 20 lower-case alphanumerics: E2B's form, safe as a DNS label after a port."""
    return "i" + _random(20)


def new_template_id() -> str:
    """20 lower-case alphanumerics, as E2B's template ids."""
    return _random(20)


def new_build_id() -> str:
    """A UUID: the SDKs parse build ids as such."""
    return str(uuid.uuid4())


def new_instance_id() -> str:
    """Name of one VM process and its work folder."""
    return "vm" + _random(12)


def new_capture_id() -> str:
    """Name of one capture and its folder of layers."""
    return "c" + _random(16)


def new_api_key() -> str:
    """`e2b_` and 40 hex digits: SDKs before 2.46 check this form."""
    return "e2b_" + secrets.token_hex(20)


def new_token() -> str:
    """An access token for envd or for sandbox traffic: 64 hex digits."""
    return secrets.token_hex(32)


def is_sandbox_id(text: str) -> bool:
    """Whether `text` can be a sandbox id at all (says nothing about existence)."""
    return _SANDBOX_ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether `text` can name a template or a snapshot: `[a-z0-9_-]`, at most 128."""
    return _NAME.fullmatch(text) is not None
