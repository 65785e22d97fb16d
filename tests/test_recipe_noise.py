"""Every recipe with every law and every kind of noise: it trains, or it is refused before any training."""

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

from ucan import Ensemble, GeneralNormal, InvalidInput, UcanError, data
from ucan.catalogue import GENERATORS, LAWS, RECIPES
from ucan.models import Denoised
from ucan.training import TrainSettings

pytest.importorskip("lightning_fabric")
from ucan.training import Trainer

# Each in small, with its attack from the first step on.
QUICK = {
    "smoothadv": {"draws": 2, "steps": 1, "warm": 0.0},
    "macer": {"draws": 2},
    "smoothmix": {"steps": 1, "warm": 0.0},
    "catrs": {"draws": 2, "steps": 1, "start": 0.0, "votes": 2},
    "acr": {"draws": 2, "start": 0.0, "drop": 0.0, "votes": 2, "steps": 1},
    "sphere": {"start": 0.0, "steps": 1},
}
SMALL = {
    "certification-wise": {"features": 2, "growth": 2},
    "composed": {"features": 2, "growth": 2},
    "basis-wise": {"leading": 4},
    "fixed": {"scale": 1.5},
    "input-dependent": {"k": 2},
}
MORE = {"powerlaw": {"a": 90.0}, "general-normal": {"beta": 3.0}}
ANY_LAW = {"augmentation", "consistency", "stability", "smoothadv", "smoothmix", "drt", "denoise"}
NOT_TRAINED = {"sample-wise", "data-dependent", "ancer", "rancer"}  # they are computed from a classifier that is there
ONE_LAW = {"composed": "gaussian", "input-dependent": "gaussian", "splitting": "uniform"}
DIGITS = data.load("digits", "train").subset(torch.arange(16))


def trainer(folder: Path, kind: str, law: dict, generator: str) -> Trainer:
    """One step of a small model on 16 digits."""
    given = {"denoiser": {"width": 2, "depth": 3}} if kind == "denoise" else {}
    noise = {"kind": generator, **SMALL.get(generator, {})}
    budget = {"budget": {"limit": 1.0}} if generator.startswith("budget") else {}
    settings = TrainSettings.from_dict(
        {
            "epochs": 1,
            "batch": 16,
            "model": "test:given",
            "recipe": {"kind": kind, **QUICK.get(kind, {})},
            "law": law,
            "generator": noise,
            **given,
            **budget,
        }
    )
    torch.manual_seed(0)
    first, second = (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2))
    model = Denoised.training_for(first, 1, 2, 3) if kind == "denoise" else Ensemble([first, second])
    return Trainer(settings, DIGITS, model, folder, "cpu")


@pytest.mark.parametrize("kind", ["catrs", "acr", "sphere"])
def test_noise_is_moved_on_spheres_only_where_they_are_its_own(kind: str, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=f"^{kind} moves noise on its own sphere.*Uniform.*law.kind gaussian"
    ) as told:
        trainer(tmp_path / "run", kind, {"kind": "uniform", "scale": 1.0}, "splitting")
    assert "\n" not in str(told.value)
    trainer(tmp_path / "run", kind, {"kind": "general-normal", "scale": 0.3}, "pattern").run()  # β = 2: Gaussian


def test_a_law_is_spherical_where_turning_a_draw_leaves_its_density() -> None:
    found = {name for name in LAWS.own if LAWS.load(name)(1.0, **({"a": 9.0} if name == "powerlaw" else {})).spherical}
    assert found == {"gaussian", "general-normal"} and not GeneralNormal(1.0, beta=3.0).spherical


def test_noise_without_a_guarantee_for_the_law_is_not_trained(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="splitting noise needs the uniform law"):
        trainer(tmp_path / "run", "consistency", {"kind": "gaussian", "scale": 1.0}, "splitting")


@pytest.mark.parametrize("kind", RECIPES.own)
def test_every_recipe_trains_with_every_noise_or_refuses_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)  # hundreds of runs, of which none is kept
    # Fabric looks through all installed packages for callbacks, which takes longer than the training.
    monkeypatch.setattr("lightning_fabric.fabric._load_external_callbacks", lambda _: [], raising=False)
    for law, generator in product(LAWS.own, GENERATORS.own):
        scale = {"scale": 1.0} if generator == "splitting" else {"scale": 0.3}
        if law == "powerlaw":
            scale = {"std": 0.3}
        fits = generator not in NOT_TRAINED and ONE_LAW.get(generator, law) == law
        made = fits and (kind in ANY_LAW or law == "gaussian")
        folder = tmp_path / f"{law}-{generator}"
        try:
            one = trainer(folder, kind, {"kind": law, **scale, **MORE.get(law, {})}, generator)
        except UcanError as error:
            assert not made and not folder.exists(), f"{law}, {generator}: {error}"
            continue
        assert made, f"{law}, {generator}: not refused"
        one.run()
        assert all(bool(v.isfinite().all()) for v in one.final_state().values()), f"{law}, {generator}"
