"""Ways to train for smoothing, one a file. Add a file with one class, and its name here."""

from ucan.training.recipes.augmentation import Augmentation
from ucan.training.recipes.base import OfLogits, Recipe, Task, cross_entropy, mean_cost
from ucan.training.recipes.consistency import Consistency

RECIPES: dict[str, type[Recipe]] = {"augmentation": Augmentation, "consistency": Consistency}

__all__ = [
    "RECIPES",
    "Augmentation",
    "Consistency",
    "OfLogits",
    "Recipe",
    "Task",
    "cross_entropy",
    "mean_cost",
]
