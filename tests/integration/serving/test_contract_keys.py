"""API keys and the admin key over HTTP: who may ask, and as whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from .contract_tools import CHAT, COMPLETIONS, chat, completion, error_of

pytestmark = pytest.mark.serve

ALICE = {"Authorization": "Bearer key-of-alice"}
BOB = {"Authorization": "Bearer key-of-bob"}
ADMIN = {"Authorization": "Bearer key-of-admin"}


@pytest.fixture(scope="module")
def client(
    run_app: Callable[..., httpx.Client], tmp_path_factory: pytest.TempPathFactory
) -> httpx.Client:
    directory: Path = tmp_path_factory.mktemp("keys")
    keys, admin = directory / "keys.yaml", directory / "admin"
    keys.write_text("key-of-alice: alice\nkey-of-alice-too: alice\nkey-of-bob: bob\n")
    admin.write_text("key-of-admin\n")
    config: dict[str, Any] = {
        "extends": "simulated",
        "auth": {"keys_file": str(keys), "admin_key_file": str(admin)},
    }
    return run_app(config)


class TestKeys:
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer"},
            {"Authorization": "Basic key-of-alice"},
            {"Authorization": "key-of-alice"},
            {"Authorization": "Bearer key-of-admin"},
            {"x-prism-tenant": "alice"},
        ],
        ids=["none", "wrong", "empty", "another scheme", "no scheme", "admin's", "only a tenant"],
    )
    def test_without_a_known_key_there_is_a_401(
        self, client: httpx.Client, headers: dict[str, str]
    ) -> None:
        for response in (
            client.post(CHAT, json=chat(), headers=headers),
            client.post(COMPLETIONS, content=b"not even JSON", headers=headers),
            client.get("/v1/models", headers=headers),
        ):
            assert error_of(response, 401)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"

    def test_a_known_key_is_served(self, client: httpx.Client) -> None:
        for headers in (ALICE, BOB, {"authorization": "bearer key-of-alice-too"}):
            assert client.post(CHAT, json=chat(), headers=headers).status_code == 200
            assert client.get("/v1/models", headers=headers).status_code == 200

    def test_the_key_says_whose_request_it_is(self, client: httpx.Client) -> None:
        def cached(headers: dict[str, str]) -> int:
            body = completion("One long text that many may ask. " * 20)
            answer = client.post(COMPLETIONS, json=body, headers=headers).json()
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert cached(ALICE) == 0
        assert cached({"Authorization": "Bearer key-of-alice-too"}) > 100
        assert cached(BOB) == 0
        # While keys are on, the header names nobody.
        assert cached(BOB | {"x-prism-tenant": "alice"}) > 100

    def test_health_and_metrics_need_no_key(self, client: httpx.Client) -> None:
        for path in ("/health", "/ready", "/metrics", "/openapi.json"):
            assert client.get(path).status_code == 200


class TestTheAdminKey:
    def test_state_and_flush_need_it(self, client: httpx.Client) -> None:
        for headers in ({}, ALICE, {"Authorization": "Bearer wrong"}):
            error_of(client.get("/prism/state", headers=headers), 401)
            error_of(client.get("/prism/", headers=headers), 401)
            error_of(client.post("/flush_cache", headers=headers), 401)
        assert client.get("/prism/state", headers=ADMIN).status_code == 200
        assert client.get("/prism/", headers=ADMIN).status_code == 200
        assert client.post("/flush_cache", headers=ADMIN).status_code == 200

    def test_a_browser_may_give_it_as_a_password_for_what_changes_nothing(
        self, client: httpx.Client
    ) -> None:
        asked = client.get("/prism/").headers["www-authenticate"]
        assert asked.startswith("Basic ")
        password = ("anyone", "key-of-admin")
        for path in ("/prism/", "/prism/state"):
            assert client.get(path, auth=password).status_code == 200
        error_of(client.post("/flush_cache", auth=password), 401)
