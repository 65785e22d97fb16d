"""`ucan explore` in a real browser, against the real command: nothing leaves the machine, and every button works."""

import os
import pickle
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import ucan
from ucan.app.session import Session
from ucan.cli import app
from ucan.rounding import floor_digits
from ucan.tabular import row_answer

pytest.importorskip("gradio")
pytest.importorskip("sklearn")
By = pytest.importorskip("selenium.webdriver.common.by").By
GONE = (IndexError, pytest.importorskip("selenium.common.exceptions").StaleElementReferenceException)
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait

# The command as it is, in a process that tells of every address it reaches for outside this machine.
EXPLORE = """
import socket, sys
inside = ("127.0.0.1", "::1", "localhost", "0.0.0.0")

def watched(real, where):
    def call(*words, **more):
        host = where(words)
        if host is not None and host not in inside:
            print("OUTSIDE", host, file=sys.stderr, flush=True)
        return real(*words, **more)
    return call

socket.socket.connect = watched(socket.socket.connect, lambda w: w[1][0] if isinstance(w[1], tuple) else None)
socket.getaddrinfo = watched(socket.getaddrinfo, lambda w: w[0])
from ucan.cli import main
main()
"""
PATIENCE = 60


def ucan_says(*words: object) -> None:
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exit_code == 0, (result.output, result.exception)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A certification-wise network after some epochs, and its certificates of three digits."""
    folder = tmp_path_factory.mktemp("digits")
    ucan_says("train", "digits-certification", "--set", "epochs=5", "-o", folder / "net", "-q")
    words = ("--model", folder / "net", "--data", "digits", "--n", 2000, "--max", 3)
    ucan_says("certify", *words, "-q", "-o", folder / "run")
    return folder / "run"


class Served:
    """`ucan explore` at work. Its standard output is read as it comes, its standard error kept in a file."""

    def __init__(self, run, log, *words):
        path = os.pathsep.join([str(Path(ucan.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", EXPLORE, "explore", str(run), *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )
        ready, _, _ = select.select([self.process.stdout], [], [], 2 * PATIENCE)
        self.said = self.process.stdout.readline() if ready else ""
        found = re.search(r"http://\S+", self.said)
        assert found, (self.said, log.read_text())
        self.address = found[0]

    def stop(self):
        """Press Ctrl-C; the exit code and the rest of what it said."""
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, rest


@pytest.fixture(scope="module")
def served(chromium, run, tmp_path_factory):
    """The command on the run for this module; in the end Ctrl-C ends it, cleanly and without a word to the outside."""
    page = Served(run, tmp_path_factory.mktemp("log") / "stderr")
    try:
        yield page
    finally:
        code, rest = page.stop()
    assert code == 0 and "Stopped." in rest
    errors = page.log.read_text()
    assert "OUTSIDE" not in errors and "Traceback" not in errors, errors


class Page:
    """What the tests do on the page."""

    def __init__(self, browser, address, ready=".u-thumbs button"):
        self.browser, self.driver = browser, browser.driver
        browser.open(address)
        self.wait(ready)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, selector):
        """The first element that the selector finds, when it finds one."""
        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(lambda _: self.all(selector))[0]

    def gone(self, selector):
        WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(lambda _: not self.all(selector))

    def press(self, selector):
        self.driver.execute_script("arguments[0].click()", self.wait(selector))

    def text(self, selector):
        return " ".join(self.wait(selector).text.split())

    def says(self, selector, text):
        """What the selector finds first, in words, when it says this."""

        def said(_):
            words = " ".join(self.all(selector)[0].text.split())
            return words if text in words else None

        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05, ignored_exceptions=GONE).until(said)

    def drop(self, path):
        self.wait("#drop input[type=file]").send_keys(str(path))

    def quiet(self):
        """No error on the console, no request to elsewhere."""
        assert self.browser.errors() == [] and self.browser.foreign_requests() == []
        assert any(":" in address for address in self.browser.requests())


@pytest.fixture
def page(browser, served):
    return Page(browser, served.address)


def test_it_opens_quietly_and_certifies_as_certify_does(page, run):
    page.press(".u-thumbs button:nth-child(2)")
    page.wait(".u-thumbs button:nth-child(2)[aria-pressed=true]")
    assert "Press “Certify”" in page.text("#result")
    page.press("#certify")
    shown = page.text("#result .u-card")
    some = Session.open(run)
    (wanted,) = some.g.certify(some.item(1)[0], n=2000)
    assert f"answer {wanted.prediction}" in shown and f"≥ {floor_digits(wanted.p_lower, 4)}" in shown
    assert floor_digits(wanted.radius, 4) in shown and floor_digits(wanted.alm, 4) in shown
    assert "Scope frozen." in shown and "nothing is guaranteed here" in shown and "deployed pipeline, at" not in shown
    assert [int(cell.text.replace(",", "")) for cell in page.all("#counted .u-bars td:last-child")] == list(
        wanted.evidence.counts
    )
    page.quiet()


def test_votes_are_seen_arriving_without_a_certificate(page):
    field = page.wait("#votes input[type=number]")
    field.clear()
    field.send_keys("60000\t")
    page.press("#certify")
    page.says("#counted", "of 60,000 votes")
    assert "radius" not in page.says("#result", "Nothing is certified yet")
    page.press(".u-thumbs button:nth-child(3)")  # whoever chooses another picture does not wait for this one
    page.wait(".u-thumbs button:nth-child(3)[aria-pressed=true]")
    page.wait("#result .u-hint")
    page.quiet()


def test_a_picture_is_dropped_certified_and_attacked(page, tmp_path):
    pixels = np.zeros((40, 40), dtype=np.uint8)
    pixels[6:34, 16:24] = 255
    Image.fromarray(pixels).convert("RGB").save(tmp_path / "mine.jpg")
    page.drop(tmp_path / "mine.jpg")
    page.says("#noise figcaption", "mine.jpg")
    page.gone(".u-thumbs button[aria-pressed=true]")
    page.press("#certify")
    assert "label" not in page.text("#result .u-card")
    page.press("#attack")
    page.wait("#attacked .u-attack:not(.u-waiting)")
    page.gone("#attacked .u-waiting")
    cards = page.all("#attacked .u-attack")
    assert len(cards) == 4, "live and frozen, inside and as far as was allowed"
    where = [card.find_element(By.CSS_SELECTOR, ".u-where").text for card in cards]
    assert [text.split(",")[0] for text in where] == ["The live pipeline", "Noise frozen at the original"] * 2
    assert cards[1].find_element(By.TAG_NAME, "h3").text == "Held, as guaranteed"
    assert all(len(card.find_elements(By.TAG_NAME, "img")) == 2 for card in cards)
    page.quiet()


def test_what_is_no_picture_gets_an_answer_and_the_page_goes_on(page, tmp_path):
    (tmp_path / "<b>words.png").write_text("this is no picture")
    page.drop(tmp_path / "<b>words.png")
    assert "words.png is no picture" in page.text("#said .u-alert") and not page.all("#said b")
    page.press("#certify")
    page.wait("#result .u-card")
    assert page.all("#said .u-alert") == []
    page.quiet()


def test_the_noise_follows_its_scale(page):
    before = page.text("#noise figure:nth-child(3)")
    field = page.wait("#scale input[type=number]")
    field.clear()
    field.send_keys("1\t")
    WebDriverWait(page.driver, PATIENCE, ignored_exceptions=GONE).until(
        lambda _: page.text("#noise figure:nth-child(3)") != before
    )
    page.press("#certify")
    page.wait("#result .u-card")
    assert "λ = 1 ·" in page.text("#result") and "own λ is 0.5" in page.text("#result")
    page.quiet()


def test_an_attack_without_a_certificate_says_what_to_do(page):
    page.press("#attack")
    assert "Certify a picture first" in page.text("#attacked .u-alert")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_fit_a_telephone(browser, served, scheme):
    browser.prefer(scheme)
    browser.resize(390, 844)
    page = Page(browser, served.address)
    assert browser.driver.execute_script("return document.body.classList.contains('dark')") == (scheme == "dark")
    page.press("#certify")
    page.wait("#result .u-card")
    assert browser.overflow() <= 0
    page.quiet()


def test_too_many_bytes_never_arrive(page, tmp_path):
    (tmp_path / "heavy.png").write_bytes(bytes(12_000_000))
    page.drop(tmp_path / "heavy.png")
    page.says(".toast-body", "maximum allowed size")
    page.press("#certify")
    page.wait("#result .u-card")


@pytest.mark.slow
def test_a_port_in_use_and_an_open_host_are_said_in_words(served, run, tmp_path):
    port = served.address.rstrip("/").rpartition(":")[2]
    path = os.pathsep.join([str(Path(ucan.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", EXPLORE, "explore", str(run), "--host", "0.0.0.0", "--port", port],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 2 and "cannot listen" in done.stderr and "Traceback" not in done.stderr
    assert "There is no password" in done.stderr


@pytest.fixture(scope="module")
def table_run(tmp_path_factory) -> Path:
    """Certificates of four people, whose answer depends on income and age; their job is held."""
    pandas = pytest.importorskip("pandas")
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folder, rng = tmp_path_factory.mktemp("table"), np.random.default_rng(0)
    frame = pandas.DataFrame({"income": rng.normal(50_000, 12_000, 200).round(), "age": rng.integers(18, 80, 200)})
    frame["job"], frame["who"] = rng.choice(["clerk", "nurse"], 200), [f"C-{i}" for i in range(200)]
    decision = np.where(frame["income"] + 200 * frame["age"] > 60_000, "approved", "refused")
    scaled = make_column_transformer((StandardScaler(), ["income", "age"]))
    model = make_pipeline(scaled, LogisticRegression()).fit(frame[["income", "age", "job"]], decision)
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    frame.to_csv(folder / "train.csv", index=False)
    frame.iloc[:4].to_csv(folder / "rows.csv", index=False)
    words = ("--model", folder / "model.pkl", "--trust", "--data", folder / "rows.csv", "--id", "who", "--n", 2000)
    ucan_says("certify", *words, "--train", folder / "train.csv", "-q", "-o", folder / "run")
    return folder / "run"


def test_a_row_of_a_table_is_chosen_certified_and_changed(browser, table_run, tmp_path):
    some = Session.open(table_run, trust=True)
    (wanted,) = some.g.holding(some.table.held_at(2)).certify(some.item(2)[0], n=2000)
    reach = row_answer(some.table, 2, wanted).reach
    served = Served(table_run, tmp_path / "stderr", "--trust")
    try:
        page = Page(browser, served.address, "#row input")
        page.says("#values", "C-0")
        field = page.wait("#row input")
        field.click()
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys("C-2", Keys.ENTER)
        page.says("#values", "C-2")
        assert "held (text)" in page.text("#values .u-held")
        page.press("#certify")
        assert reach.words() in page.text("#result .u-words")
        page.wait("#typed textarea, #typed input").send_keys(f"income={int(some.item(2)[0][0, 0]) + 1}\n")
        assert f"the answer is {reach.answer} here, too" in page.says("#values", "covers this change")
        page.press("#certify")
        page.says("#result", "The answer stays")
        browser.resize(390, 844)
        assert browser.overflow() <= 0
        page.quiet()
    finally:
        code, _ = served.stop()
    assert code == 0 and "Traceback" not in served.log.read_text() and "OUTSIDE" not in served.log.read_text()


def test_the_answers_of_a_question_are_looked_at_checked_and_attacked(browser, tmp_path):
    words = ("--model", "ucan.models.examples:diabetes", "--data", "diabetes", "--n", 500, "--max", 2, "-q")
    ucan_says("ask", "regression", "--radius", "0.1,0.2", *words, "-o", tmp_path / "run")
    served = Served(tmp_path / "run", tmp_path / "stderr")
    try:
        page = Page(browser, served.address, "#result svg rect")
        page.says("#shown", "input 0")
        field = page.wait("#input input")
        field.click()
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys("1", Keys.ENTER)
        page.says("#shown", "input 1")
        page.press("#check")
        page.says("#tried", "The claim stands")
        page.press("#attack")
        page.says("#tried", "The claim held")
        browser.resize(390, 844)
        assert browser.overflow() <= 0
        page.quiet()
    finally:
        code, _ = served.stop()
    assert code == 0 and "Traceback" not in served.log.read_text() and "OUTSIDE" not in served.log.read_text()
