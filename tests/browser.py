"""A headless Chromium for tests and benchmarks of pages: selenium with the system's driver."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
# No service of the browser's own may reach the network; root has no sandbox.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


class NoBrowser(Exception):
    """There is no Chromium, no driver, or no selenium."""


@contextlib.contextmanager
def browser(folder: Path, width: int = 1200, height: int = 900) -> Iterator[Any]:
    """Yields selenium's driver of a Chromium with an empty profile in ``folder``.

    Raises NoBrowser.
    """
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    service = shutil.which("chromedriver")
    if not (binary and service):
        raise NoBrowser("no chromium, or no chromedriver (apt install chromium chromium-driver)")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        raise NoBrowser("no selenium (pip install selenium)") from None
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(service))
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, width: int, height: int = 900) -> None:
    """The size of the page, which a window's frame would reduce."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def media(driver: Any, scheme: str = "light", kind: str = "") -> None:
    """scheme: light or dark. kind: print, or '' for the screen."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": features})


def scripts(driver: Any, enabled: bool) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not enabled})


def open_page(driver: Any, path: Path, seconds: float = 60) -> None:
    """Returns when all charts have been drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(path.resolve().as_uri())
    drawn = "return [...document.querySelectorAll('.plot')].every(plot => plot.data)"
    WebDriverWait(driver, seconds, poll_frequency=0.1).until(lambda _: driver.execute_script(drawn))


def violations(driver: Any, paths: Iterable[Path]) -> list[str]:
    """What axe finds on these pages, light and dark, at 1280 and at 390 px. Raises NoBrowser."""
    try:
        import axe_core_python
    except ImportError:
        raise NoBrowser("no axe (pip install axe-core-python)") from None
    axe = Path(axe_core_python.__file__).with_name("axe.min.js").read_text()
    found = []
    for path, scheme, width in product(paths, ("light", "dark"), (1280, 390)):
        media(driver, scheme)
        resize(driver, width)
        open_page(driver, path)
        driver.execute_script(axe)
        result = driver.execute_async_script("axe.run().then(arguments[0])")
        for broken in result["violations"]:
            nodes = [node["target"][0] for node in broken["nodes"]]
            found.append(f"{path.name} {scheme} {width}: {broken['id']} of {nodes[:3]}")
    media(driver)
    return found
