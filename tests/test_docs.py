"""Every Python block of the README and the docs runs, and what the pages claim is so."""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import ucan
from ucan.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MADE = ("changes.md", "options.md")  # pages that the site makes
SLOW = ("tutorials/train.md", "tutorials/paper.md")  # half a minute each
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


def with_blocks() -> list[Any]:
    """The pages with code, the slow ones marked."""
    pages = [page for page in PAGES if blocks(page)]
    return [pytest.param(p, marks=pytest.mark.slow if named(p) in SLOW else (), id=named(p)) for p in pages]


def pictures(page: Path) -> list[str]:
    """The pictures that a tutorial's own blocks save."""
    shown = re.findall(r"!\[[^\]]*\]\(([^)/\s]+\.(?:svg|png))\)", page.read_text(encoding="utf-8"))
    return shown if page.parent.name == "tutorials" else []


def blocks(page: Path) -> list[tuple[int, str]]:
    """(line, code) of each Python block."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)) + 1, found.group(1)) for found in BLOCK.finditer(text)]


def run(page: Path) -> dict[str, Any]:
    """The names that a page's blocks define, executed one after the other."""
    names: dict[str, Any] = {"__name__": f"docs_{page.stem}"}
    for line, code in blocks(page):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", with_blocks())
def test_the_blocks_run(page: Path, tmp_path: Path) -> None:
    run(page)
    assert [name for name in pictures(page) if not (tmp_path / name).exists()] == []


def test_the_pages_have_blocks() -> None:
    with_code = {page.stem for page in PAGES if blocks(page)}
    assert with_code >= {"README", "laws", "generators", "scopes"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" in target or target in pictures(page) or Path(target).name in MADE:
            continue
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or there.suffix != ".md" or anchor in anchors(there), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).strip().replace(" ", "-") for heading in headings}


def test_the_pages_name_commands_that_exist() -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    words = {word for page in PAGES for word in re.findall(r"^    ucan (\w+)", page.read_text(encoding="utf-8"), re.M)}
    groups = {group.name for group in app.registered_groups}
    assert words >= {"certify", "train", "audit", "report"} and words <= known | groups
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert [name for name in known if f"`{name}`" not in changes and f"`ucan {name}`" not in changes] == []


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == ucan.__version__
    assert f"version: {ucan.__version__}\n" in (ROOT / "CITATION.cff").read_text()


# --- the law of docs/laws.md, against an independent route ---


@pytest.fixture(scope="module")
def law() -> ucan.Law:
    return run(ROOT / "docs" / "laws.md")["GeneralisedNormal"](scale=0.7)


TRUTH = stats.gennorm(1.5, scale=0.7)


def test_its_draws_follow_gennorm(law: ucan.Law) -> None:
    draws = law.sample(400, (25,), torch.Generator().manual_seed(0), torch.float64)
    assert draws.shape == (400, 25)
    assert stats.kstest(draws.flatten().numpy(), TRUTH.cdf).pvalue > 0.01
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 0.2
    assert law.std(25) == pytest.approx(TRUTH.std(), rel=1e-12)


def test_its_radius_is_the_quantile_rounded_down(law: ucan.Law) -> None:
    p = np.concatenate([[0.5 + 1e-9, 0.51], np.linspace(0.55, 0.999, 50), 1 - np.logspace(-4, -12, 9)])
    radius, truth = law.radius(p, norm=1, dim=64), TRUTH.isf(1 - p)
    assert (radius <= truth * (1 + 1e-13)).all()
    assert np.allclose(radius, truth, rtol=1e-9, atol=1e-11)
    assert law.radius(0.5, norm=1, dim=64) == 0


def test_its_two_class_radius_is_half_the_difference(law: ucan.Law) -> None:
    for p_a, p_b in ((0.4, 0.2), (0.6, 0.1), (0.9, 0.05), (0.45, 0.449)):
        truth = (TRUTH.ppf(p_a) - TRUTH.ppf(p_b)) / 2
        radius = law.radius(p_a, norm=1, dim=3, p_b=p_b)
        assert radius <= truth * (1 + 1e-13) and radius == pytest.approx(truth, rel=1e-8)


def test_its_probability_inverts_the_radius(law: ucan.Law) -> None:
    for p in (0.6, 0.9, 0.999):
        assert law.probability(law.radius(p, norm=1, dim=2), norm=1, dim=2) == pytest.approx(p, rel=1e-9)


def test_no_classifier_beats_it(law: ucan.Law) -> None:
    """Half-spaces along an axis reach the radius exactly; those across other directions leave room."""
    rng = torch.Generator().manual_seed(1)
    z = law.sample(200_000, (3,), rng, torch.float64)
    for direction in ([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.4, 0.3, 0.3]):
        v = torch.tensor(direction, dtype=torch.float64)  # ‖v‖₁ = 1
        along = z @ v / v.square().sum()
        p = 0.9
        edge = along.quantile(p)  # the class is held where along < edge, with probability p
        radius = law.radius(p, norm=1, dim=3)
        assert ((along + radius * 1.0 < edge).double().mean()) > 0.495


def test_alm_is_spelt_out_where_it_first_appears() -> None:
    full = "ALM (alternative Lebesgue measure"
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if "ALM" in text:
            assert text.index("ALM") == text.index(full), page.name
