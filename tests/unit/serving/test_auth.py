"""Keys, tenants and the admin key, without a server."""

from __future__ import annotations

import hmac
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from prism_ray.config_errors import ConfigError
from prism_ray.serving.auth import Door, Keys, read_admin_key, read_keys
from prism_ray.serving.errors import ApiError
from prism_ray.serving.listener import is_loopback

KEYS = Keys({"key-a": "alice", "key-b": "bob"})


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def basic(credentials: str) -> dict[str, str]:
    return {"authorization": f"Basic {b64encode(credentials.encode()).decode()}"}


class TestKeys:
    def test_a_key_names_its_tenant_and_nothing_else_does(self) -> None:
        assert KEYS.tenant_of("key-a") == "alice"
        assert KEYS.tenant_of("key-b") == "bob"
        for wrong in ("", "key-", "key-a ", "KEY-A", "key-aa", "alice"):
            assert KEYS.tenant_of(wrong) is None

    def test_every_known_key_is_compared_in_constant_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compared = []

        def compare(known: bytes, given: bytes) -> bool:
            compared.append((len(known), len(given)))
            return known == given

        monkeypatch.setattr(hmac, "compare_digest", compare)
        for key in ("key-a", "key-b", "x", "x" * 1000):
            compared.clear()
            KEYS.tenant_of(key)
            assert compared == [(32, 32), (32, 32)]


class TestDoor:
    def test_with_keys_on_only_a_key_opens(self) -> None:
        door = Door(KEYS, None, open_admin=True)
        assert door.tenant(bearer("key-b")) == "bob"
        assert door.tenant(bearer("key-b") | {"x-prism-tenant": "alice"}) == "bob"
        for headers in ({}, bearer("wrong"), {"x-prism-tenant": "alice"}, {"authorization": "x"}):
            with pytest.raises(ApiError) as refusal:
                door.tenant(headers)
            assert refusal.value.status == 401
            assert refusal.value.headers == {"WWW-Authenticate": "Bearer"}

    def test_with_keys_off_a_header_names_the_tenant(self) -> None:
        door = Door(None, None, open_admin=True)
        assert door.tenant({}) == "default"
        assert door.tenant({"x-prism-tenant": "team-1.a_b"}) == "team-1.a_b"
        for name in ("", "a b", "ä", "a\x00b", "x" * 65):
            with pytest.raises(ApiError) as refusal:
                door.tenant({"x-prism-tenant": name})
            assert refusal.value.status == 400

    @pytest.mark.parametrize(
        ("admin_key", "open_admin", "headers", "opens"),
        [
            (None, True, {}, True),
            (None, False, {}, False),
            (None, False, bearer("key-a"), False),
            ("admin", True, {}, False),
            ("admin", False, bearer("admin"), True),
            ("admin", True, bearer("admin"), True),
            ("admin", True, bearer("admin2"), False),
            ("admin", True, bearer("key-a"), False),
        ],
    )
    def test_the_admin_key_or_loopback_opens(
        self, admin_key: str | None, open_admin: bool, headers: dict[str, str], opens: bool
    ) -> None:
        door = Door(KEYS, admin_key, open_admin=open_admin)
        if opens:
            door.admin(headers)
        else:
            with pytest.raises(ApiError) as refusal:
                door.admin(headers)
            assert refusal.value.status == 401


class TestFiles:
    def test_a_keys_file_maps_keys_to_tenants(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.yaml"
        path.write_text("# comment\nkey-a: alice\n'key: b': bob\n")
        keys = read_keys(str(path))
        assert (keys.tenant_of("key-a"), keys.tenant_of("key: b")) == ("alice", "bob")

    @pytest.mark.parametrize(
        "text", ["", "[]", "- key", "key-a: 3", "3: alice", "key: a b", "s3cret: [", "'': alice"]
    )
    def test_another_file_is_refused_without_showing_a_key(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "keys.yaml"
        path.write_text(text)
        with pytest.raises(ConfigError) as refusal:
            read_keys(str(path))
        assert "auth.keys_file" in str(refusal.value)
        assert "s3cret" not in str(refusal.value)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        for read in (read_keys, read_admin_key):
            with pytest.raises(ConfigError):
                read(str(tmp_path / "nothing"))

    def test_the_admin_key_is_the_text_of_its_file(self, tmp_path: Path) -> None:
        path = tmp_path / "admin"
        path.write_text(" secret \n")
        assert read_admin_key(str(path)) == "secret"
        path.write_text("\n")
        with pytest.raises(ConfigError):
            read_admin_key(str(path))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("", False),
        (None, False),
    ],
)
def test_only_loopback_addresses_are_loopback(host: Any, loopback: bool) -> None:
    assert is_loopback(host) is loopback


class TestBrowser:
    def test_a_browser_may_send_the_admin_key_as_a_password_where_that_is_allowed(self) -> None:
        door = Door(None, "secret", open_admin=False)
        door.admin(basic("anyone:secret"), browser=True)
        door.admin(bearer("secret"), browser=True)
        for headers in ({}, basic("secret"), basic("secret:"), basic("x:wrong"), bearer("wrong")):
            with pytest.raises(ApiError) as refusal:
                door.admin(headers, browser=True)
            assert refusal.value.status == 401
            assert refusal.value.headers["WWW-Authenticate"].startswith("Basic realm=")
        for broken in ("Basic", "Basic !!", "Basic //79", "Digest x"):
            with pytest.raises(ApiError):
                door.admin({"authorization": broken}, browser=True)

    def test_what_changes_something_takes_no_password(self) -> None:
        door = Door(None, "secret", open_admin=False)
        with pytest.raises(ApiError) as refusal:
            door.admin(basic("anyone:secret"))
        assert refusal.value.headers["WWW-Authenticate"] == "Bearer"

    def test_where_no_key_is_set_and_the_listener_is_public_none_is_asked_for(self) -> None:
        with pytest.raises(ApiError) as refusal:
            Door(None, None, open_admin=False).admin({}, browser=True)
        assert refusal.value.headers["WWW-Authenticate"] == "Bearer"
