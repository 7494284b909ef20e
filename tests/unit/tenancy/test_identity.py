from __future__ import annotations

import pytest

from prism_ray.tenancy import DEFAULT_TENANT, TenantScope

SECRET = b"s" * 32


def test_equal_tenants_share_and_different_ones_do_not() -> None:
    one, same = TenantScope.of(SECRET, "a"), TenantScope.of(SECRET, "a")
    other = TenantScope.of(SECRET, "b")
    assert one == same
    assert one.identity != other.identity
    assert one.cache_salt != other.cache_salt


def test_a_clients_own_salt_narrows_its_tenants_scope() -> None:
    plain, salted = TenantScope.of(SECRET, "a"), TenantScope.of(SECRET, "a", "mine")
    assert plain.name == salted.name == b"a"
    assert plain.identity != salted.identity
    assert plain.cache_salt != salted.cache_salt


def test_tenant_and_salt_are_not_just_put_together() -> None:
    assert TenantScope.of(SECRET, "ab", "c").identity != TenantScope.of(SECRET, "a", "bc").identity


def test_salt_and_identity_cannot_be_told_without_the_secret() -> None:
    one, other = TenantScope.of(SECRET, "a"), TenantScope.of(b"t" * 32, "a")
    assert one.identity != other.identity
    assert one.cache_salt != other.cache_salt
    with pytest.raises(ValueError, match="secret"):
        TenantScope.of(b"", "a")


def test_only_the_default_tenant_without_a_salt_has_an_empty_engine_salt() -> None:
    assert TenantScope.of(SECRET).cache_salt == ""
    assert TenantScope.of(SECRET, DEFAULT_TENANT).cache_salt == ""
    assert len(TenantScope.of(SECRET, DEFAULT_TENANT, "mine").cache_salt) == 32
    assert len(TenantScope.of(SECRET, "a").cache_salt) == 32
