"""Keyed digests: how a piece of text is named where its text must not go. Knows no tokenizer."""

from __future__ import annotations

import hmac
from array import array
from collections.abc import Sequence

ID_BYTES = 16


class Identities:
    """Names pieces of one tenant's prompts under the server's secret.

    An id covers a domain (system, segment, gap), the tenant, the exact text and the exact token ids,
    each with its length in front. A piece that is tokenized alone has one id wherever it stands; a
    piece cut out of a longer tokenization has the same id only if its tokens came out the same. So
    equal ids always mean equal tokens, and no id says anything across tenants.
    """

    def __init__(self, secret: bytes, tenant: bytes) -> None:
        if not secret:
            raise ValueError("an empty secret would make segment ids guessable")
        self._secret = secret
        self._tenant = tenant

    def system(self, text: str, ids: Sequence[int]) -> bytes:
        return self._digest(b"system", text, ids)

    def segment(self, text: str, ids: Sequence[int]) -> bytes:
        return self._digest(b"segment", text, ids)

    def gap(self, text: str, ids: Sequence[int]) -> bytes:
        return self._digest(b"gap", text, ids)

    def tokens_of(self, text: str, *, leading: bool = False) -> bytes:
        """Key of a text's cached tokens: the tenant's own, so that no timing crosses tenants.

        ``leading``: as it is tokenized at a prompt's start.
        """
        return self._digest(b"leading" if leading else b"tokens", text, ())

    def chunk(self, text: str) -> bytes:
        """Like ``tokens_of``, for a chunk's ids with the ends of its tokens."""
        return self._digest(b"chunk", text, ())

    def _digest(self, domain: bytes, text: str, ids: Sequence[int]) -> bytes:
        fields = (domain, self._tenant, text.encode(), array("I", ids).tobytes())
        message = b"".join(len(field).to_bytes(8, "big") + field for field in fields)
        return hmac.digest(self._secret, message, "sha256")[:ID_BYTES]
