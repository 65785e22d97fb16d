"""Training recipes for smoothing, one per file. Add a file with one class, and its name in ``ucan.catalogue.RECIPES``."""

from ucan.training.recipes.acr import Acr
from ucan.training.recipes.augmentation import Augmentation
from ucan.training.recipes.base import OfLogits, Recipe, Task, check_spherical, cross_entropy, mean_cost
from ucan.training.recipes.catrs import CatRs
from ucan.training.recipes.consistency import Consistency
from ucan.training.recipes.denoise import Denoise
from ucan.training.recipes.drt import Drt
from ucan.training.recipes.macer import Macer
from ucan.training.recipes.smoothadv import SmoothAdv
from ucan.training.recipes.smoothmix import SmoothMix
from ucan.training.recipes.sphere import Sphere
from ucan.training.recipes.stability import Stability

__all__ = [
    "Acr",
    "Augmentation",
    "CatRs",
    "Consistency",
    "Denoise",
    "Drt",
    "Macer",
    "OfLogits",
    "Recipe",
    "SmoothAdv",
    "SmoothMix",
    "Sphere",
    "Stability",
    "Task",
    "check_spherical",
    "cross_entropy",
    "mean_cost",
]
