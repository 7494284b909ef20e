"""How ``prism-ray serve`` waits for its end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from prism_ray.serving.serve_command import _wait_for_interrupt

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def handlers() -> Iterator[dict[int, object]]:
    """Those of this process, which are put back."""
    before = {number: signal.getsignal(number) for number in BOTH}
    yield dict(before)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", BOTH)
def test_a_signal_ends_the_wait_and_a_second_one_breaks_off_what_follows(
    number: int, handlers: dict[int, object]
) -> None:
    def send_once_it_waits() -> None:
        while signal.getsignal(number) == handlers[number]:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=send_once_it_waits, daemon=True).start()
    _wait_for_interrupt()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
