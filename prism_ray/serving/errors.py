"""The OpenAI error body and the errors that clients see. Maps causes to answers; handles none."""

from __future__ import annotations

import math
from typing import Any


def error_body(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """``{"error": {message, type, param, code}}``: the one shape of every error."""
    # A lone surrogate quoted from a client's body could not be written as UTF-8.
    message = message.encode(errors="backslashreplace").decode()
    param = None if param is None else param.encode(errors="backslashreplace").decode()
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class ApiError(Exception):
    """An answer other than the one that was asked for: HTTP status, OpenAI body, headers."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        body: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body if body is not None else error_body(message, kind, param=param, code=code)
        self.headers: dict[str, str] = {}
        if retry_after_s is not None:
            # Whole seconds are HTTP's; OpenAI's clients look for the exact time first.
            self.headers["Retry-After"] = str(max(1, round(retry_after_s)))
            self.headers["retry-after-ms"] = str(max(1, math.ceil(retry_after_s * 1000)))

    @property
    def event(self) -> dict[str, Any]:
        """The body of an error event in a stream, where no HTTP status can be set any more."""
        return {"error": {**self.body["error"], "status": self.status}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def context_length_exceeded(prompt_tokens: int, max_tokens: int, limit: int) -> ApiError:
    """OpenAI's wording and code, which clients look for to shorten their prompt."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{prompt_tokens + max_tokens} tokens ({prompt_tokens} in the messages, {max_tokens} in the "
        "completion). Please reduce the length of the messages or completion.",
        param="messages",
        code="context_length_exceeded",
    )


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")


def unauthorized(message: str) -> ApiError:
    error = ApiError(401, message, kind="authentication_error", code="invalid_api_key")
    error.headers["WWW-Authenticate"] = "Bearer"
    return error


def unknown_model(name: str, served: str) -> ApiError:
    return ApiError(
        404,
        f"The model `{name}` does not exist; this server has `{served}`.",
        param="model",
        code="model_not_found",
    )


def unknown_request(name: str) -> ApiError:
    return ApiError(
        404,
        f"No decision about request {name!r} is remembered: it was not decided, or too many were since.",
        code="request_not_found",
    )


def queue_full(retry_after_s: float) -> ApiError:
    return ApiError(
        429,
        "Too many requests are waiting; try again later.",
        kind="rate_limit_error",
        code="queue_full",
        retry_after_s=retry_after_s,
    )


def no_replica(retry_after_s: float) -> ApiError:
    return ApiError(
        503,
        "No replica can serve right now; try again later.",
        kind="service_unavailable",
        code="no_replica",
        retry_after_s=retry_after_s,
    )


def deadline_passed() -> ApiError:
    return ApiError(
        408, "The deadline passed while the request was queued.", kind="timeout", code="deadline"
    )


def internal(message: str) -> ApiError:
    return ApiError(500, message, kind="server_error", code="internal_error")
