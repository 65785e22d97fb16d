"""UCAN: certified robustness by randomized smoothing with noise of any law and any shape."""

from typing import TYPE_CHECKING

from ucan.lazy import lazy_names
from ucan.version import __version__

if TYPE_CHECKING:
    from ucan import scales
    from ucan.budget import Budget
    from ucan.certificate import Abstention, Certificate, Prediction
    from ucan.data.tables import Table
    from ucan.differentiable import Differentiable
    from ucan.errors import InvalidInput, MissingExtra, ModelError, SingularScale, UcanError, UnsupportedNorm
    from ucan.generators import (
        BasisWise,
        BudgetWise,
        CertificationWise,
        Composed,
        DatasetWise,
        Fixed,
        Generator,
        InputDependent,
        Isotropic,
        Pattern,
        Splitting,
    )
    from ucan.laws import ExpInf, Gaussian, GeneralNormal, Laplace, Law, PowerLaw, Uniform
    from ucan.models import Denoised, Ensemble
    from ucan.questions.kinds import SmoothedLabels, SmoothedRegressor, SmoothedSegmenter
    from ucan.region import Region
    from ucan.registry import Registry
    from ucan.routed import Routed
    from ucan.service.client import Client
    from ucan.sharing.opening import load
    from ucan.smoothed import SmoothedClassifier
    from ucan.tabular import SmoothedTable
    from ucan.threshold import Threshold

__all__ = [
    "Abstention",
    "BasisWise",
    "Budget",
    "BudgetWise",
    "Certificate",
    "CertificationWise",
    "Client",
    "Composed",
    "DatasetWise",
    "Denoised",
    "Differentiable",
    "Ensemble",
    "ExpInf",
    "Fixed",
    "Gaussian",
    "GeneralNormal",
    "Generator",
    "InputDependent",
    "InvalidInput",
    "Isotropic",
    "Laplace",
    "Law",
    "MissingExtra",
    "ModelError",
    "Pattern",
    "PowerLaw",
    "Prediction",
    "Region",
    "Registry",
    "Routed",
    "SingularScale",
    "SmoothedClassifier",
    "SmoothedLabels",
    "SmoothedRegressor",
    "SmoothedSegmenter",
    "SmoothedTable",
    "Splitting",
    "Table",
    "Threshold",
    "UcanError",
    "Uniform",
    "UnsupportedNorm",
    "__version__",
    "load",
    "scales",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "budget": "Budget",
        "certificate": "Abstention Certificate Prediction",
        "data.tables": "Table",
        "differentiable": "Differentiable",
        "errors": "InvalidInput MissingExtra ModelError SingularScale UcanError UnsupportedNorm",
        "generators": "BasisWise BudgetWise CertificationWise Composed DatasetWise Fixed Generator InputDependent "
        "Isotropic Pattern Splitting",
        "laws": "ExpInf Gaussian GeneralNormal Laplace Law PowerLaw Uniform",
        "models": "Denoised Ensemble",
        "questions.kinds": "SmoothedLabels SmoothedRegressor SmoothedSegmenter",
        "region": "Region",
        "registry": "Registry",
        "routed": "Routed",
        "service.client": "Client",
        "sharing.opening": "load",
        "threshold": "Threshold",
        "smoothed": "SmoothedClassifier",
        "tabular": "SmoothedTable",
    },
)
