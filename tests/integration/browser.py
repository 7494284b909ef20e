"""Debian's Chromium for tests: headless, on an empty profile, talking to nobody but the page's server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root has none, and nothing but our own pages is opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
JAVASCRIPT_OFF = {"profile.managed_default_content_settings.javascript": 2}


def needed_browser() -> tuple[str, str]:
    """The programs; the test is skipped where they are not."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if None in found:
        pytest.skip("no Chromium here: apt-get install chromium chromium-driver")
    return str(found[0]), str(found[1])


@contextmanager
def browser(*, scripts: bool = True, width: int = 1400, height: int = 1200) -> Iterator[Any]:
    """A running browser (selenium's WebDriver); ended, and its profile removed, when the context ends."""
    selenium = pytest.importorskip("selenium.webdriver")
    program, driver_program = needed_browser()
    with TemporaryDirectory(prefix="prism-browser-") as profile:
        options = selenium.ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if not scripts:
            options.add_experimental_option("prefs", JAVASCRIPT_OFF)
        driver = selenium.Chrome(options, selenium.ChromeService(driver_program))
        try:
            driver.set_page_load_timeout(60)
            yield driver
        finally:
            driver.quit()


def complaints(driver: Any) -> list[str]:
    """What the browser's console says: errors of the script, and what the page's policy kept out."""
    return [
        entry["message"]
        for entry in driver.get_log("browser")
        if "favicon.ico" not in entry["message"]
    ]


def set_scheme(driver: Any, scheme: str) -> None:
    """Pretend that the system prefers ``light`` or ``dark``."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def set_size(driver: Any, width: int, height: int) -> None:
    """The size of the page itself, as narrow as wanted (a window is not)."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def screenshot(driver: Any, file: Path) -> None:
    """The whole page as PNG, however long it is."""
    file.parent.mkdir(parents=True, exist_ok=True)
    height = driver.execute_script("return document.documentElement.scrollHeight")
    width = driver.execute_script("return document.documentElement.clientWidth")
    set_size(driver, width, height)
    driver.save_screenshot(str(file))
