"""The one error that a client's prompt can cause; what the HTTP answer looks like is the ingress's."""

from __future__ import annotations


class PromptError(ValueError):
    """A prompt that cannot be served: HTTP ``status``, the ``path`` in the body, what was expected.

    ``code`` is OpenAI's machine-readable error code, where there is one. ``str()`` gives
    "path: message".
    """

    def __init__(self, status: int, path: str, message: str, code: str | None = None) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.status = status
        self.path = path
        self.message = message
        self.code = code


def expected(path: str, what: str, got: object) -> PromptError:
    """A 400 for a value of the wrong type: "messages[0].role: expected a string, got int"."""
    return PromptError(400, path, f"expected {what}, got {_json_type(got)}")


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"a string of {len(value)} characters"
    names = {bool: "bool", int: "int", float: "float", dict: "object", list: "array"}
    return names.get(type(value), type(value).__name__)
