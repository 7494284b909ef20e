"""Who may ask: API keys and their tenants, and the admin key. Reads key files; knows no HTTP server.

With a keys file every request needs one of its keys, and the key says which tenant asks. Without one
the client names its tenant in a header, or is the default tenant.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from prism_ray.config import AuthConfig
from prism_ray.config_errors import ConfigError, Problem
from prism_ray.serving.errors import bad_request, unauthorized
from prism_ray.tenancy import DEFAULT_TENANT

TENANT_HEADER = "x-prism-tenant"
_TENANT = re.compile(r"[A-Za-z0-9_.-]{1,64}")

MISSING = "Give an API key: Authorization: Bearer KEY."
WRONG = "This API key is not known."
ADMIN_CLOSED = (
    "This endpoint needs the admin key, and none is set (auth.admin_key_file). Without one it is "
    "open only when the HTTP listener is bound to loopback."
)

BROWSER_CHALLENGE = 'Basic realm="prism_ray: any name, the admin key as password", charset="UTF-8"'


class Keys:
    """Keys by digest. Every known key is compared, in constant time, so that timing tells nothing."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        self._tenants = [(_digest(key), tenant) for key, tenant in tenants.items()]

    def tenant_of(self, key: str) -> str | None:
        """The tenant whose key this is; None: nobody's."""
        digest = _digest(key)
        found = None
        for known, tenant in self._tenants:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


class Door:
    """Decides who asks. ``keys`` None: keys are off. ``open_admin``: the listener is on loopback."""

    def __init__(self, keys: Keys | None, admin_key: str | None, *, open_admin: bool) -> None:
        self._keys = keys
        self._admin = None if admin_key is None else Keys({admin_key: "admin"})
        self._open_admin = open_admin

    @classmethod
    def of(cls, auth: AuthConfig, *, open_admin: bool) -> Door:
        """Read the files that the config names. Raises ConfigError."""
        keys = None if auth.keys_file is None else read_keys(auth.keys_file)
        admin = None if auth.admin_key_file is None else read_admin_key(auth.admin_key_file)
        return cls(keys, admin, open_admin=open_admin)

    def tenant(self, headers: Mapping[str, str]) -> str:
        """The tenant of a request. ApiError 401 for its key, 400 for a name that is none."""
        if self._keys is not None:
            key = _bearer(headers)
            tenant = None if key is None else self._keys.tenant_of(key)
            if tenant is None:
                raise unauthorized(MISSING if key is None else WRONG)
            return tenant
        named = headers.get(TENANT_HEADER)
        if named is None:
            return DEFAULT_TENANT
        if not _TENANT.fullmatch(named):
            raise bad_request(
                f"{TENANT_HEADER}: expected 1..64 of A-Z a-z 0-9 _ . -", TENANT_HEADER
            )
        return named

    def admin(self, headers: Mapping[str, str], *, browser: bool = False) -> None:
        """ApiError 401 unless the request may see and change the server's state.

        ``browser``: the key may also come as the password of HTTP Basic, which is what a browser can
        ask people for. Browsers then send it unasked, also from other sites' forms: only for GETs
        that change nothing.
        """
        if self._admin is None:
            if not self._open_admin:
                raise unauthorized(ADMIN_CLOSED)
            return
        key = _bearer(headers)
        if key is None and browser:
            key = _basic_password(headers)
        if key is None or self._admin.tenant_of(key) is None:
            refusal = unauthorized(MISSING if key is None else WRONG)
            if browser:
                refusal.headers["WWW-Authenticate"] = BROWSER_CHALLENGE
            raise refusal


def read_keys(path: str) -> Keys:
    """A YAML mapping key: tenant. Raises ConfigError for what cannot be read as one."""
    try:
        data = yaml.safe_load(Path(path).expanduser().read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        # A YAML error quotes the line, and with it a key.
        raise _unreadable("auth.keys_file", type(error).__name__) from None
    if not isinstance(data, dict) or not data:
        raise _unreadable("auth.keys_file", "no mapping of keys to tenants")
    for key, tenant in data.items():
        named = isinstance(tenant, str) and _TENANT.fullmatch(tenant)
        if not isinstance(key, str) or not key.strip() or not named:
            raise _unreadable("auth.keys_file", "an entry that is no `key: tenant`, both text")
    return Keys(data)


def read_admin_key(path: str) -> str:
    """The text of the file without surrounding blanks. Raises ConfigError if there is none."""
    try:
        key = Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable("auth.admin_key_file", type(error).__name__) from None
    if not key:
        raise _unreadable("auth.admin_key_file", "an empty file")
    return key


def _bearer(headers: Mapping[str, str]) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def _basic_password(headers: Mapping[str, str]) -> str | None:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return text.partition(":")[2].strip() or None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _unreadable(path: str, what: str) -> ConfigError:
    return ConfigError([Problem(path, "a readable file of keys", what)])
