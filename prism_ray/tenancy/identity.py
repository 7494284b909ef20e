"""Who a request belongs to, as what its text and its cache entries are named by. Knows no HTTP."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

DEFAULT_TENANT = "default"
"""Tenant of requests that name none."""

SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class TenantScope:
    """What one tenant's requests share with each other and with nobody else.

    ``name`` is what shares and queue caps count by. ``identity`` names the tenant in segment
    digests, ``cache_salt`` (hex, or empty for the default tenant) in the engine's prefix cache. Both
    are HMACs of the tenant and of the client's own salt under the server's secret: equal scopes, and
    only those, share segments and cached prefixes.
    """

    name: bytes
    identity: bytes
    cache_salt: str

    @classmethod
    def of(cls, secret: bytes, tenant: str = DEFAULT_TENANT, client_salt: str = "") -> TenantScope:
        """The scope of a tenant, narrowed by what the client sent as ``cache_salt``.

        The default tenant without a client's salt has an empty engine salt: with nobody else there,
        requests reach the engine as if there were no tenants. Raises ValueError for an empty secret.
        """
        if not secret:
            raise ValueError("an empty secret would make cache salts guessable")
        identity = _digest(secret, b"tenant", tenant.encode(), client_salt.encode())
        salt = _digest(secret, b"salt", identity)[:SALT_BYTES].hex()
        unsalted = tenant == DEFAULT_TENANT and not client_salt
        return cls(tenant.encode(), identity, "" if unsalted else salt)


def _digest(secret: bytes, *fields: bytes) -> bytes:
    """HMAC-SHA256 of the fields, each with its length in front."""
    message = b"".join(len(field).to_bytes(8, "big") + field for field in fields)
    return hmac.digest(secret, message, "sha256")
