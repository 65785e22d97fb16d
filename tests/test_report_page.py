"""The report in a real browser: quiet, whole, readable by pointer and keyboard, in both themes and on a phone."""

import numpy as np
import pytest
import torch
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

import ucan
from ucan.report.page import build_page, galleries_of
from ucan.report.runs import read_runs
from ucan.results import Store

SHAPE = (1, 6, 6)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report on three runs of a small classifier, one of them on disk as imported."""
    folder = tmp_path_factory.mktemp("page")
    x = torch.rand(12, *SHAPE, generator=torch.Generator().manual_seed(0))
    np.savez(folder / "data.npz", x=x.numpy(), y=np.zeros(12, np.int64))

    def net(batch):
        bright = 8 * (batch.flatten(1).mean(1) - 0.5)
        return torch.stack([-bright, bright], dim=1)

    sigma = torch.linspace(0.5, 2.0, 36).reshape(SHAPE)
    noises = {"isotropic": ucan.Isotropic(), "shaped": ucan.Fixed(sigma), "<i>long name</i> " * 6: ucan.Isotropic()}
    folders = []
    for number, (name, generator) in enumerate(noises.items()):
        g = ucan.SmoothedClassifier(net, ucan.Gaussian(scale=0.25), generator, 2)
        config = {"kind": "certify", "name": name, "data": str(folder / "data.npz"), "alpha": 0.001, "alm_cap": 0.5}
        plan = {"n0": 20, "n": 200, "seed": number}
        folders.append(folder / f"run{number}")
        with Store.create(folders[-1], config) as store:
            for i, outcome in enumerate(g.certify(x, **plan)):
                store.add(i, 0 if outcome.prediction is None else outcome.prediction, outcome, 0.1)
    runs = read_runs(folders)
    path = folder / "report.html"
    path.write_text(build_page(runs, galleries_of(runs)), encoding="utf-8")
    return path


def background(browser):
    return browser.driver.execute_script("return getComputedStyle(document.body).backgroundColor")


def tip(browser):
    return browser.driver.find_element(By.CSS_SELECTOR, ".tip")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_quiet_fits_and_asks_for_nothing(browser, page, scheme, width):
    browser.resize(width)
    browser.prefer(scheme)
    browser.open(page)
    assert browser.errors() == [] and browser.foreign_requests() == []
    assert {address.split(":")[0] for address in browser.requests()} <= {"file", "data"}
    assert browser.overflow() <= 0
    charts = browser.driver.find_elements(By.CSS_SELECTOR, ".plot svg")
    assert sum(chart.is_displayed() for chart in charts) == 2 and len(charts) == 4
    assert all(len(chart.find_elements(By.TAG_NAME, "path")) > 10 for chart in charts)
    assert len(browser.driver.find_elements(By.CSS_SELECTOR, ".slices svg")) == 3
    broken = "return [...document.images].filter(i => !i.complete || !i.naturalWidth).length"
    assert browser.driver.execute_script(broken) == 0
    dark = sum(map(int, background(browser).removeprefix("rgb(").rstrip(")").split(","))) < 200
    assert dark == (scheme == "dark")


def test_hovering_reads_every_run(browser, page):
    browser.open(page)
    assert not tip(browser).is_displayed()
    plot = browser.driver.find_element(By.CSS_SELECTOR, ".plot")
    ActionChains(browser.driver).move_to_element_with_offset(plot, -200, 0).perform()
    assert tip(browser).is_displayed()
    said = tip(browser).text
    assert "or more" in said and said.count("%") == 3 and "isotropic" in said and "shaped" in said
    ActionChains(browser.driver).move_to_element(browser.driver.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip(browser).is_displayed()
    assert browser.errors() == []


def test_arrow_keys_read_what_the_curve_says(browser, page):
    browser.open(page)
    plot = browser.driver.find_element(By.CSS_SELECTOR, ".plot")
    plot.send_keys(Keys.HOME)
    at_zero = plot.get_attribute("aria-valuetext")
    assert at_zero.startswith("radius 0.00") and tip(browser).is_displayed()
    first = read_runs([page.parent / "run0"])[0]
    right = int((first.columns["correct"] & ~first.columns["abstained"]).sum())
    assert f"isotropic {1000 * right // 12 / 10:.1f} percent" in at_zero
    plot.send_keys(Keys.END)
    assert "isotropic 0.0 percent" in plot.get_attribute("aria-valuetext")
    plot.send_keys(Keys.ARROW_LEFT, Keys.ESCAPE)
    assert not tip(browser).is_displayed() and browser.errors() == []


def test_the_theme_switch_works_and_is_remembered(browser, page):
    browser.open(page)
    light, button = background(browser), browser.driver.find_element(By.CSS_SELECTOR, "button.theme")
    line = "return getComputedStyle(document.querySelectorAll('.plot svg path[stroke-width]')[0]).stroke"
    before = browser.driver.execute_script(line)
    assert button.text == "Dark theme"
    button.click()
    assert background(browser) != light and button.text == "Light theme"
    assert browser.driver.execute_script(line) != before  # the charts follow
    browser.driver.refresh()
    assert background(browser) != light
    browser.driver.find_element(By.CSS_SELECTOR, "button.theme").click()
    assert background(browser) == light
    browser.driver.execute_script("localStorage.clear()")
    assert browser.errors() == []


def test_paper_is_white_whatever_the_theme(browser, page):
    browser.prefer("dark")
    browser.open(page)
    ink = "return getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()"
    assert browser.driver.execute_script(ink) == "#e9edf2"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.driver.execute_script(ink) == "#1b2330"
    assert not browser.driver.find_element(By.CSS_SELECTOR, "button.theme").is_displayed()
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_scripts_the_page_still_shows_everything(browser, page):
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(page)
        assert browser.driver.find_element(By.CSS_SELECTOR, ".plot svg.wide").is_displayed()
        assert not browser.driver.find_elements(By.CSS_SELECTOR, "button.theme:not([hidden])")
        assert len(browser.driver.find_elements(By.CSS_SELECTOR, "#accuracy table")) == 2
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
