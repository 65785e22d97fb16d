"""A headless Chromium for the tests of pages: what it logged, and what it asked the network for."""

import base64
import json
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # A page that asks for anything elsewhere fails, and says so in its console, whether or not there is a network.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
LOCAL_SCHEMES = ("file", "data", "blob", "about", "chrome")
LOCAL_HOSTS = ("127.0.0.1", "localhost")


class Browser:
    """One Chromium with its driver. ``driver`` is selenium's; the rest is what our tests ask again and again."""

    def __init__(self, driver):
        self.driver = driver
        self._console, self._requests = [], []

    def open(self, address):
        """Go to a path or an address, with the logs emptied first."""
        self._read()
        self._console, self._requests = [], []
        self.driver.get(address.resolve().as_uri() if isinstance(address, Path) else str(address))

    def errors(self):
        """What the console said since `open`, of severity error; uncaught exceptions are among it."""
        self._read()
        return [entry["message"] for entry in self._console if entry["level"] == "SEVERE"]

    def requests(self):
        """Every address asked for since `open`, web sockets included."""
        self._read()
        return list(self._requests)

    def foreign_requests(self):
        """Those addresses that lie on another machine."""
        parts = [(address, urlsplit(address)) for address in self.requests()]
        return [a for a, part in parts if part.scheme not in LOCAL_SCHEMES and part.hostname not in LOCAL_HOSTS]

    def resize(self, width, height=900):
        """The size of the page in CSS pixels; a phone's width, too, which a window cannot have."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme):
        """What the system prefers, `light` or `dark`."""
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)

    def screenshot(self, path):
        """The whole page as a PNG, beyond the window as well."""
        wanted = {"format": "png", "captureBeyondViewport": True}
        Path(path).write_bytes(base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", wanted)["data"]))

    def overflow(self):
        """By how many pixels the page is wider than its window."""
        return self.driver.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def _read(self):
        self._console += self.driver.get_log("browser")  # each entry is handed out once
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._requests.append(message["params"]["request"]["url"])
            elif message["method"] == "Network.webSocketCreated":
                self._requests.append(message["params"]["url"])


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """The session's one Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no browser: pages are looked at with chromium and chromedriver (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield running
    finally:
        running.quit()


@pytest.fixture
def browser(chromium):
    """A `Browser` of an ordinary size on a system that prefers light pages."""
    fresh = Browser(chromium)
    fresh.open("about:blank")
    fresh.resize(1280)
    fresh.prefer("light")
    return fresh
