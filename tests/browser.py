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


# The contrast of two colours as the Web Content Accessibility Guidelines define it; 4.5 is their least for small text.
FAINT = """
const light = c => [0, 1, 2].map(i => c[i] / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const colour = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
const ground = e => { for (; e; e = e.parentElement) {
  const c = colour(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0.5) return c; } return [255, 255, 255]; };
const found = [];
const walk = document.createTreeWalker(document.querySelector('.md-content') || document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement, words = walk.currentNode.data.trim();
  if (!words || !e.getClientRects().length || e.closest('svg, script, style, .headerlink')) continue;
  const behind = ground(e), own = colour(getComputedStyle(e).color), part = own.length > 3 ? own[3] : 1;
  const seen = [0, 1, 2].map(i => own[i] * part + behind[i] * (1 - part)), two = [light(seen), light(behind)];
  const contrast = (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
  if (contrast < arguments[0]) found.push([contrast, words.slice(0, 40)]);
}
return found;
"""


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

    def faint(self, least=4.4):
        """Texts of the content whose contrast to their ground is below this, as (contrast, text); pictures are left out."""
        return self.driver.execute_script(FAINT, least)

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
