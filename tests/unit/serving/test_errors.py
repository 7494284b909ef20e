"""The error body, and what goes with it."""

from __future__ import annotations

import json

import pytest

from prism_ray.serving import errors


class TestBodies:
    @pytest.mark.parametrize(
        ("error", "status"),
        [
            (errors.bad_request("x", "p"), 400),
            (errors.context_length_exceeded(10, 2, 8), 400),
            (errors.unauthorized("x"), 401),
            (errors.unknown_model("a", "b"), 404),
            (errors.deadline_passed(), 408),
            (errors.too_large(5), 413),
            (errors.queue_full(2.0), 429),
            (errors.internal("x"), 500),
            (errors.no_replica(2.0), 503),
        ],
    )
    def test_every_error_has_the_openai_body(self, error: errors.ApiError, status: int) -> None:
        assert error.status == status
        assert set(error.body) == {"error"}
        assert set(error.body["error"]) == {"message", "type", "param", "code"}
        assert error.event["error"] == error.body["error"] | {"status": status}

    @pytest.mark.parametrize(
        ("wait_s", "seconds", "milliseconds"),
        [(0.2, "1", "200"), (1.4, "1", "1400"), (1.6, "2", "1600"), (30.0, "30", "30000")],
    )
    def test_retry_after_is_whole_seconds_and_exact_milliseconds(
        self, wait_s: float, seconds: str, milliseconds: str
    ) -> None:
        for error in (errors.queue_full(wait_s), errors.no_replica(wait_s)):
            assert error.headers == {"Retry-After": seconds, "retry-after-ms": milliseconds}

    def test_what_cannot_be_written_as_utf8_is_escaped(self) -> None:
        body = errors.error_body("no \ud800", "t", param="\udfff")
        assert json.dumps(body, ensure_ascii=False).encode()
        assert body["error"]["message"] == "no \\ud800"
