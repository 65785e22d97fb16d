"""The documentation as a site: its sources quickly, the built pages in a browser (slow)."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import ucan

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = {"changes.md", "board.md", "reference/options.md"}


def pages() -> set[str]:
    return {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def module_of(name: str) -> Any:
    """A module beside the pages."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks its module up there
    spec.loader.exec_module(module)
    return module


def hooks() -> Any:
    pytest.importorskip("mkdocs", reason="the site is built by mkdocs: pip install 'ucan[docs]'")
    return module_of("site_hooks")


# --- the sources ---


def test_the_navigation_names_pages_that_exist() -> None:
    named = re.findall(
        r"- (?:[\w -]+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(named) == len(set(named)) and set(named) <= pages() | MADE
    assert {name for name in pages() if name.count("/")} <= set(named), "a page in a folder has its place there"


def test_the_front_page_has_four_ways_in() -> None:
    ways = re.findall(r"^- \*\*\[(\w[\w-]*)\]", text("index.md"), re.MULTILINE)
    assert ways == ["Start", "Tutorials", "How-to", "Reference"]


def test_every_tutorial_and_question_is_on_its_list() -> None:
    for folder in ("tutorials", "questions"):
        listed = set(re.findall(r"\]\(([\w-]+\.md)\)", text(f"{folder}/index.md")))
        assert listed == {page.name for page in (DOCS / folder).glob("*.md")} - {"index.md"}
    assert len(list((DOCS / "questions").glob("*.md"))) > 8


def test_the_reference_has_every_public_name() -> None:
    written = "".join(text(f"reference/{page}.md") for page in ("smoothing", "noise", "models"))
    shown = set(re.findall(r"^::: ([\w.]+)$", written, re.MULTILINE))
    wanted = {f"ucan.{name}" for name in ucan.__all__ if name not in ("__version__", "scales")}
    wanted |= {f"ucan.scales.{name}" for name in ucan.scales.__all__}
    assert wanted <= shown


def test_the_reference_has_every_name_that_a_page_imports() -> None:
    shown = set(re.findall(r"^::: ucan[\w.]*\.(\w+)$", "".join(map(text, pages())), re.MULTILINE))
    for page in sorted(pages()):
        for block in re.findall(r"^```py(?:thon)?\n(.*?)^```$", text(page), re.DOTALL | re.MULTILINE):
            for one in ast.walk(ast.parse(block)):
                if isinstance(one, ast.ImportFrom) and str(one.module).partition(".")[0] == "ucan":
                    assert {name.name for name in one.names} - {"data"} <= shown, page


def test_every_parameter_of_the_reference_is_explained() -> None:
    pytest.importorskip("griffe", reason="the reference is made by griffe: pip install 'ucan[docs]'")
    made = module_of("parameters")
    silent = [
        (entry.path, name)
        for shown in made.shown()
        for entry in made.entries(shown)
        for name in entry.missing
        if not made.meaning(entry.path, name)
    ]
    assert silent == [], "say it in the docstring, or in docs/reference/parameters.md if it means the same everywhere"
    assert "reaches" in made.meaning("ucan.runs.prepare.CertifyJob", "stop")  # the words of `ucan certify --stop`
    assert "norm" in made.meaning("ucan.scales.base.Scale.axis_norms", "p")
    assert "probability" in made.meaning("ucan.generators.base.Generator.region", "p")


def test_every_picture_is_described() -> None:
    for page in DOCS.rglob("*.md"):
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert len(words.split()) >= 3 and "://" not in target, (page.name, target)


def test_a_tutorial_shows_what_it_printed_and_an_error_ends_it() -> None:
    made = hooks()
    first = "```python\nfrom pathlib import Path\nn = 6 * 7\n```\n"
    page = f"# T\n\n{first}\nso\n\n```python\nprint(n)\nPath('a.svg').write_text('<svg/>')\n```\n"
    done = made.run_page(page, "t.md")
    assert "\n42\n" in done.text and done.text.count(".printed") == 1 and done.pictures == {"a.svg": b"<svg/>"}
    with pytest.raises(ZeroDivisionError):
        made.run_page("```python\n1 / 0\n```\n", "t.md")


def test_the_options_of_every_command_are_there() -> None:
    page = hooks().options_page()
    for words in ("## ucan certify", "`--scale`", "`--stop`", "## ucan audit", "`--min-radius`", "## ucan train"):
        assert words in page, words


# --- the built pages ---


class Addresses(HTMLParser):
    """What a page loads and links to, its anchors, and its pictures without a description."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.blind: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loaded.append(str(given["src"]))
        if tag == "link" and "stylesheet" in str(given.get("rel")):
            self.loaded.append(str(given.get("href")))
        if tag == "img" and not given.get("alt"):
            self.blind.append(str(given.get("src")))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        self.anchors |= {str(given[key]) for key in ("id", "name") if given.get(key)}


def addresses(page: Path) -> Addresses:
    found = Addresses()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def pages_of(site: Path) -> list[Path]:
    """The built pages but the one for addresses that do not exist, which only a server shows."""
    return [page for page in sorted(site.resolve().rglob("*.html")) if page.name != "404.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    pytest.importorskip("mkdocs", reason="the site is built by mkdocs: pip install 'ucan[docs]'")
    out = tmp_path_factory.mktemp("site")
    where = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": where, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
def test_the_built_pages_load_nothing_from_elsewhere(site: Path) -> None:
    built = pages_of(site)
    assert len(built) > 60
    for page in built:
        found = addresses(page)
        outside = [address for address in found.loaded if address.startswith(("http:", "https:", "//"))]
        assert outside == [] and found.blind == [], page.name


@pytest.mark.slow
def test_every_link_and_anchor_of_the_built_pages_leads_somewhere(site: Path) -> None:
    read = {page: addresses(page) for page in pages_of(site)}
    lost, seen = [], 0
    for page, found in read.items():
        for link in found.links:
            where = urlsplit(link)
            if where.scheme or where.netloc:
                continue
            target = (page.parent / unquote(where.path)).resolve() if where.path else page
            target = target / "index.html" if target.is_dir() else target
            anchors = read[target].anchors if target in read else None
            if not target.is_file() or (
                where.fragment and anchors is not None and unquote(where.fragment) not in anchors
            ):
                lost.append((page.name, link))
            seen += 1
    assert lost == [] and seen > 1000


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_in_a_browser(site: Path, browser: Any, width: int, theme: str) -> None:
    browser.resize(width)
    browser.prefer(theme)
    for page in pages_of(site):
        browser.open(page)
        assert browser.overflow() <= 0 and browser.faint() == [], page
        assert browser.foreign_requests() == [] and browser.errors() == [], page
        scheme = browser.driver.execute_script("return document.body.getAttribute('data-md-color-scheme')")
        assert scheme in ({"light": "default", "dark": "slate"}[theme], None), page  # None: a report, shown as it is


@pytest.mark.slow
def test_the_search_works_from_a_file(site: Path, browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.open(site / "index.html")
    field = browser.driver.find_element(By.CSS_SELECTOR, "input.md-search__input")
    field.click()
    field.send_keys("registry")
    found = WebDriverWait(browser.driver, 30).until(
        lambda driver: driver.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
    )
    assert any("registry" in str(link.get_attribute("href")) for link in found)
    assert browser.foreign_requests() == [] and browser.errors() == []
