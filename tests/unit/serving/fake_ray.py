"""Ray handles without Ray: an actor whose methods are coroutines, and that can die, stall or fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError


class FakeActor:
    """``actor.method.remote(...)`` runs ``target.method(...)``; ``calls`` notes what was called."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.dead = asyncio.Event()
        self.running = asyncio.Event()
        self.running.set()
        self.failures: list[Exception] = []

    def __getattr__(self, name: str) -> FakeMethod:
        return FakeMethod(self, name, getattr(self._target, name))

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


class FakeMethod:
    def __init__(self, actor: FakeActor, name: str, method: Callable[..., Awaitable[Any]]) -> None:
        self._actor = actor
        self._name = name
        self._method = method

    def remote(self, *arguments: Any) -> Awaitable[Any]:
        return asyncio.ensure_future(self._run(arguments))

    async def _run(self, arguments: tuple[Any, ...]) -> Any:
        actor = self._actor
        if actor.failures:
            raise actor.failures.pop(0)
        if actor.dead.is_set():
            raise ActorDiedError
        await actor.running.wait()
        actor.calls.append((self._name, arguments))
        call = asyncio.ensure_future(self._method(*arguments))
        died = asyncio.ensure_future(actor.dead.wait())
        await asyncio.wait((call, died), return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if call.done():
            return call.result()
        call.cancel()
        raise ActorDiedError


def unreachable() -> RayError:
    return ActorUnavailableError("no connection", b"0" * 16)
