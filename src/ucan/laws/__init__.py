"""Isotropic noise laws: sampling, standard deviations and certified radii."""

from ucan.laws.base import CELL, UNIT, DrawError, Law, norm_name
from ucan.laws.gaussian import Gaussian
from ucan.laws.general import GeneralNormal
from ucan.laws.laplace import Laplace
from ucan.laws.radial import ExpInf, PowerLaw
from ucan.laws.uniform import Uniform

__all__ = [
    "CELL",
    "UNIT",
    "DrawError",
    "ExpInf",
    "Gaussian",
    "GeneralNormal",
    "Laplace",
    "Law",
    "PowerLaw",
    "Uniform",
    "norm_name",
]
