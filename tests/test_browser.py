"""The browser of the tests itself: it sees errors and requests, so that their absence means something."""


def page(tmp_path, body):
    path = tmp_path / "page.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><title>t</title><body>{body}", encoding="utf-8")
    return path


def test_a_quiet_page_is_quiet(browser, tmp_path):
    browser.open(page(tmp_path, "<p id=a>hello</p>"))
    assert browser.driver.title == "t"
    assert browser.errors() == [] and browser.foreign_requests() == []
    assert any(address.startswith("file:") for address in browser.requests())


def test_errors_are_seen(browser, tmp_path):
    browser.open(page(tmp_path, "<script>console.error('first'); undefinedName()</script>"))
    said = " ".join(browser.errors())
    assert "first" in said and "undefinedName" in said


def test_requests_are_seen_and_fail(browser, tmp_path):
    browser.open(page(tmp_path, "<img src=http://example.org/x.png>"))
    assert browser.foreign_requests() == ["http://example.org/x.png"]
    assert browser.errors()


def test_faint_text_is_seen(browser, tmp_path):
    browser.open(
        page(tmp_path, "<p style='color:#999'>pale</p><p style='color:#555'>plain</p><svg><text>x</text></svg>")
    )
    assert [words for _, words in browser.faint()] == ["pale"]
    assert [round(contrast, 2) for contrast, _ in browser.faint()] == [2.85]


def test_sizes_themes_and_pictures(browser, tmp_path):
    browser.resize(390)
    browser.prefer("dark")
    browser.open(page(tmp_path, "<div style='width:500px'>wide</div>"))
    assert browser.overflow() > 50
    assert browser.driver.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches")
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
