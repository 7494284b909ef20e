"""The event loop of each test: those marked ``virtual_time`` do not wait for their timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from .virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}
