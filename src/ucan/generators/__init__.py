"""Generators give μ and Σ. Every generator declares the scope of its guarantee."""

from ucan.generators.base import Generator
from ucan.generators.basis import BasisWise
from ucan.generators.composed import Composed
from ucan.generators.context import Context
from ucan.generators.elastic import InputDependent
from ucan.generators.fixed import Fixed, Isotropic
from ucan.generators.learned import BudgetWise, CertificationWise, DatasetWise
from ucan.generators.making import kind_of, make_generator, rebuilt
from ucan.generators.pattern import Pattern
from ucan.generators.shape import Estimate, harm_of
from ucan.generators.splitting import Splitting, Turn

__all__ = [
    "BasisWise",
    "BudgetWise",
    "CertificationWise",
    "Composed",
    "Context",
    "DatasetWise",
    "Estimate",
    "Fixed",
    "Generator",
    "InputDependent",
    "Isotropic",
    "Pattern",
    "Splitting",
    "Turn",
    "harm_of",
    "kind_of",
    "make_generator",
    "rebuilt",
]
