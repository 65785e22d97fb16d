"""Parts by name: what is known, what is refused, and that a record makes its part again."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ucan
from outside import install, install_toy
from ucan import InvalidInput, catalogue, scales
from ucan.catalogue import ATTACKS, GENERATORS, LAWS, READERS, RECIPES, SCALES, STOPS, Catalogue, Made, parsed
from ucan.certificate import load_json, save_json
from ucan.evidence import Noise, law_from_json, law_to_json, make_law
from ucan.generators import Context, Generator, kind_of, make_generator, rebuilt
from ucan.runs.parts import law_named, noise_named
from ucan.stop_option import parse_stop
from ucan.training import TrainSettings
from ucan.training.recipes import Recipe

ALL = (LAWS, SCALES, GENERATORS, RECIPES, ATTACKS, STOPS, READERS)
SHAPE = (1, 4, 4)
CONTEXT = Context(SHAPE, ucan.Gaussian(0.5))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of docs/extending.md, installed."""
    folder = install_toy(tmp_path / "packages")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("toy_parts", None)


# --- ours ---


@pytest.mark.parametrize("parts", ALL, ids=lambda c: c.group)
def test_every_name_of_ours_leads_to_a_part_that_knows_its_name(parts: Catalogue) -> None:
    for name in parts.own:
        kind = parts.load(name)
        if list(parts.own.values()).count(parts.own[name]) == 1:
            assert parts.name_of(kind) == name
        assert parts.package(name) is None


def test_every_public_law_generator_and_scale_has_a_name() -> None:
    laws = [kind for kind in vars(ucan.laws).values() if isinstance(kind, type) and issubclass(kind, ucan.Law)]
    assert all(LAWS.name_of(kind) for kind in laws if kind is not ucan.Law)
    for name in (
        "BasisWise",
        "BudgetWise",
        "CertificationWise",
        "Composed",
        "DatasetWise",
        "Fixed",
        "Isotropic",
        "Pattern",
    ):
        assert GENERATORS.name_of(getattr(ucan, name))
    assert all(SCALES.name_of(kind) for kind in scales.OWN.values())


def test_listing_names_imports_no_torch() -> None:
    code = (
        "import sys; from ucan.catalogue import LAWS, GENERATORS; LAWS.names(), GENERATORS.names();"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("gaussian", "gaussian", {}),
        ("pattern(norm=inf, kappa=0.5)", "pattern", {"norm": "inf", "kappa": 0.5}),
        ("dataset-wise(offset=false)", "dataset-wise", {"offset": False}),
        ("basis-wise(scale=[0.25,1.0],leading=3)", "basis-wise", {"scale": [0.25, 1.0], "leading": 3}),
        ("x(word='two words', other=bare, sign=-2)", "x", {"word": "two words", "other": "bare", "sign": -2}),
    ],
)
def test_words_are_read_and_written(text: str, name: str, parameters: dict) -> None:
    assert parsed(text) == (name, parameters)
    assert parsed(str(Made(name, None, parameters))) == (name, parameters)


@pytest.mark.parametrize("text", ["x(", "x(1)", "x(a=)", "x(a=f())", "x(**a)", "x(a=1))"])
def test_words_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="parameter=value"):
        parsed(text)


def test_unknown_names_and_parameters_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"--law must be one of gaussian, laplace.*got 'cauchy'.*ucan\.laws"):
        law_named("cauchy", 0.5, None)
    with pytest.raises(InvalidInput, match=r"zigzag.*isotropic.*pattern-1"):
        noise_named("zigzag", SHAPE, ucan.Gaussian(0.5))
    with pytest.raises(InvalidInput, match=r"unexpected keyword argument 'curl'.*Its parameters are norm, kappa"):
        noise_named("pattern(curl=1)", SHAPE, ucan.Gaussian(0.5))
    with pytest.raises(InvalidInput, match=r"recipe\.kind must be one of augmentation.*got 'odd'.*group ucan\.recipes"):
        TrainSettings(recipe={"kind": "odd"})
    with pytest.raises(InvalidInput, match="missing a required argument: 'a'"):
        make_law("powerlaw", {"scale": 1.0})


def test_noise_that_is_made_in_training_is_not_made_by_words() -> None:
    learned, fitted = ("dataset-wise", "certification-wise"), ("budget", "basis-wise(leading=2)", "input-dependent")
    for text in (*learned, *fitted, "composed", "budget-wise"):
        how = {**dict.fromkeys(learned, "learned in training"), **dict.fromkeys(fitted, "fitted to training inputs")}
        with pytest.raises(InvalidInput, match=f"is {how.get(text, '')}.*train with it"):
            noise_named(text, SHAPE, ucan.Gaussian(0.5))
    assert noise_named("basis-wise(basis=dct,leading=2)", SHAPE, ucan.Gaussian(0.5)).leading == 2


def test_laws_by_name_with_parameters() -> None:
    assert law_named(None, None, None) == ucan.Gaussian(0.25)
    assert law_named("laplace", 0.5, None) == law_named("laplace(scale=0.5)", None, None) == ucan.Laplace(0.5)
    assert law_named("powerlaw", 1.0, 30.0) == law_named("powerlaw(a=30.0)", 1.0, None) == ucan.PowerLaw(1.0, a=30.0)
    with pytest.raises(InvalidInput, match="give different scales"):
        law_named("laplace(scale=0.5)", 0.4, None)
    with pytest.raises(InvalidInput, match="scale must be a finite number above 0, got nan"):
        law_named("laplace", math.nan, None)


# --- what a part was made with ---

NOISES = {
    "isotropic": lambda: ucan.Isotropic(),
    "pattern": lambda: ucan.Pattern(SHAPE, norm=math.inf, kappa=0.5),
    "dataset-wise": lambda: ucan.DatasetWise(SHAPE, gamma=0.5, offset=False),
    "certification-wise": lambda: ucan.CertificationWise(1, features=2, growth=2),
    "composed": lambda: ucan.Composed(channels=1, norm=2, features=2, growth=2),
    "fixed": lambda: ucan.Fixed(0.5),
    "budget-wise": lambda: ucan.BudgetWise(SHAPE, scale=0.5),
}


@pytest.mark.parametrize("name", NOISES)
def test_the_repr_of_a_generator_rebuilds_the_call(name: str) -> None:
    torch.manual_seed(0)
    one = NOISES[name]()
    again = eval(repr(one), {**vars(ucan), "inf": math.inf})
    assert type(again) is type(one) and again.settings() == one.settings() and repr(again) == repr(one)
    made = one.made()
    assert made is not None and made.name == name and "shape" not in made.parameters


def test_the_repr_of_a_law_rebuilds_the_call() -> None:
    for law in (ucan.Gaussian(0.5), ucan.PowerLaw(0.5, a=30.0)):
        assert eval(repr(law), vars(ucan)) == law


def test_what_is_no_plain_value_is_shown_as_such_and_not_recorded() -> None:
    noise = ucan.Fixed(torch.ones(SHAPE), mean=torch.zeros(SHAPE))
    assert repr(noise) == "Fixed(scale=…, mean=…)" and noise.made() is None


@pytest.mark.parametrize("name", ["isotropic", "pattern", "fixed"])
def test_a_record_makes_its_noise_again(name: str) -> None:
    one = NOISES[name]()
    noise = Noise.from_dict({**vars(one.record()), "made": one.made().to_dict()})
    again = rebuilt(noise, CONTEXT)
    assert type(again) is type(one) and again.record() == one.record()
    assert kind_of(noise) is type(one)


def test_a_record_of_learned_noise_does_not_make_other_weights() -> None:
    torch.manual_seed(0)
    assert rebuilt(NOISES["dataset-wise"]().record(), CONTEXT) is None


def test_kinds_of_records_of_version_0_1() -> None:
    assert kind_of(Noise("Pattern(norm=2)")) is ucan.Pattern and kind_of(Noise("Whatever(2)")) is None
    assert kind_of(Noise("x", kind="Fixed", module="ucan.generators.base")) is ucan.Fixed
    assert kind_of(Noise("x", kind="Fixed", module="somebody.else")) is None


# --- a package beside ours ---


def test_names_from_outside_are_listed_and_loaded(toy: Path) -> None:
    for parts, name in zip(ALL, ("halved", "ramp", "stripes", "gentle", "nudge", "patient", "blocks"), strict=True):
        assert name in parts.names() and name not in parts.own and parts.package(name) == "toy-parts"
        kind = parts.load(name)
        assert kind.__module__ == "toy_parts" and parts.name_of(kind) == name


def test_a_law_from_outside_goes_to_json_and_back(toy: Path) -> None:
    law = law_named("halved(share=0.25)", 0.5, None)
    entry = law_to_json(law)
    assert (entry["kind"], entry["package"], entry["share"]) == ("halved", "toy-parts", 0.25)
    assert law_from_json(entry) == law and eval(repr(law), {"Halved": type(law)}) == law


def test_noise_and_sigma_from_outside_go_to_a_certificate_and_back(toy: Path, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.stack([torch.ones(16), -torch.ones(16)]))
    x = torch.full((1, *SHAPE), 0.5)
    for text in ("stripes(even=0.25)", "ramp(low=0.25,high=0.5)", "fixed(scale=0.25)"):
        noise = noise_named(text, SHAPE, ucan.Gaussian(0.5))
        (c,) = ucan.SmoothedClassifier(model, ucan.Gaussian(0.5), noise, 2).certify(x, n=500)
        save_json(c, tmp_path / "c.json")
        again = load_json(tmp_path / "c.json")
        assert again.region.scale.same_as(c.region.scale) and again.evidence.noise == c.evidence.noise
        assert again.radius == c.radius > 0


def test_a_scale_with_an_init_of_its_own_is_moved_and_copied(toy: Path) -> None:
    ramp = SCALES.load("ramp")(shape=SHAPE, low=0.25)
    assert type(ramp.to(torch.float64)) is type(ramp) and ramp.to(torch.float64).sigma.dtype == torch.float64
    assert ramp.copied().same_as(ramp) and scales.kind_name(ramp) == "ramp@toy-parts"
    again = scales.restored("ramp@toy-parts", ramp.content())
    assert type(again) is type(ramp) and again.same_as(ramp)


def test_settings_take_parts_from_outside(toy: Path) -> None:
    settings = TrainSettings(
        law={"kind": "halved", "scale": 0.5},
        generator={"kind": "stripes", "odd": 0.5},
        recipe={"kind": "gentle", "smoothing": 0.2},
    )
    generator = settings.build_generator(SHAPE, None)
    assert float(generator.sigma.min()) == 0.5 and settings.build_law(16).share == 0.5
    assert isinstance(settings.build_recipe(), Recipe) and settings.build_recipe().smoothing == 0.2
    scaled = TrainSettings(generator={"kind": "fixed", "scale": {"kind": "ramp", "low": 0.25}}).build_generator(
        SHAPE, None
    )
    assert type(scaled.scale).__name__ == "Ramp" and float(scaled.scale.sigma.min()) == 0.25


def test_a_stopping_rule_and_a_reader_from_outside(toy: Path) -> None:
    rule = parse_stop("patient(votes=64)")
    assert rule.votes == 64 and str(parse_stop(str(rule))) == str(rule)
    dataset = ucan.data.load("blocks")
    assert len(dataset) == 8 and dataset.event_shape == (1, 8, 8) and dataset.num_classes == 2


def test_a_package_that_is_not_there_is_named() -> None:
    law = {
        "name": "Halved",
        "module": "toy_parts",
        "kind": "halved",
        "package": "toy-parts",
        "scale": 0.5,
        "share": 0.5,
    }
    for ask in (
        lambda: law_from_json(law),
        lambda: scales.restored("ramp@toy-parts", {}),
        lambda: rebuilt(Noise("Stripes", "Stripes", "toy_parts", made=Made("stripes", "toy-parts")), CONTEXT),
    ):
        with pytest.raises(InvalidInput, match=r"toy-parts.*not installed"):
            ask()


def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, points: str) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / name, code, points, name)))


def test_a_package_cannot_take_a_name_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, monkeypatch, "greedy", "class Gaussian: pass\n", "[ucan.laws]\ngaussian = greedy:Gaussian\n")
    with pytest.warns(UserWarning, match=r"greedy.*gaussian.*ignored"):
        assert LAWS.load("gaussian") is ucan.Gaussian
    assert LAWS.names().count("gaussian") == 1


def test_a_broken_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(
        tmp_path,
        monkeypatch,
        "broken",
        "1 / 0\n",
        "[ucan.laws]\nbent = broken:Bent\n[ucan.recipes]\nodd = broken:Odd\n",
    )
    assert "bent" in LAWS.names()
    with pytest.raises(InvalidInput, match=r"'bent' of the package broken cannot be loaded.*ZeroDivisionError"):
        LAWS.load("bent")


def test_two_packages_with_one_name_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        add(tmp_path, monkeypatch, name, "def read(): ...\n", f"[ucan.readers]\nmine = {name}:read\n")
    with pytest.raises(InvalidInput, match=r"several packages .first, second"):
        READERS.load("mine")


def test_what_is_no_part_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = "".join(f"[ucan.{group}]\nnone = nothing:make\n" for group in ("laws", "recipes", "stops", "scales"))
    add(tmp_path, monkeypatch, "nothing", "def make(scale=1): return 3\n", points)
    with pytest.raises(InvalidInput, match=r"'none' returned a int, which is not a ucan.Law"):
        make_law("none", {})
    with pytest.raises(InvalidInput, match=r"not a ucan.training.recipes.Recipe"):
        TrainSettings(recipe={"kind": "none"}).build_recipe()
    with pytest.raises(InvalidInput, match=r"no ucan.stopping.Stop"):
        parse_stop("none")
    with pytest.raises(InvalidInput, match=r"not a ucan.scales.Scale"):
        scales.make_scale("none", SHAPE)


def test_a_kind_of_noise_is_added_by_its_file_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a developer of ours would: a class, and a line in the registry; everything else asks the class."""

    class Checkers(Generator):
        scope = "pipeline"

        def __init__(self, shape, low: float = 0.5) -> None:
            super().__init__()
            i = torch.arange(shape[-2])[:, None] + torch.arange(shape[-1])
            self.register_buffer("sigma", torch.where(i % 2 == 0, low, 1.0).expand(*shape).contiguous())

        def forward(self, x):
            return x.new_zeros(()), scales.Diagonal(self.sigma)

    monkeypatch.setattr(sys.modules[__name__], "Checkers", Checkers, raising=False)
    Checkers.__qualname__ = "Checkers"
    monkeypatch.setitem(catalogue.GENERATORS.own, "checkers", f"{__name__}:Checkers")
    made = TrainSettings(generator={"kind": "checkers", "low": 0.25}).build_generator(SHAPE, None)
    again = rebuilt(made.record(), CONTEXT)
    assert again is not None and again.record() == made.record() and made.norms(ucan.Laplace(1.0)) == ucan.Laplace.norms
    assert repr(make_generator("checkers", {}, CONTEXT)) == "Checkers(shape=(1, 4, 4))"
    assert type(noise_named("checkers(low=0.1)", SHAPE, ucan.Gaussian(0.5))) is Checkers
