"""The scope of a claim: whether the noise justifies it, which input its evidence is about, and what a verdict confirms."""

from __future__ import annotations

from dataclasses import replace

import torch

from ucan.certificate import Certificate
from ucan.choices import SCOPES
from ucan.errors import InvalidInput
from ucan.registry import Registry
from ucan.smoothed import SmoothedClassifier
from ucan.verify.fresh import FRESH
from ucan.verify.same import of_a_copy
from ucan.verify.stated import Stated, constant_line
from ucan.verify.verdict import DEPLOYED, STATED, Check, Verdict


def scope_check(
    certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, registry: Registry | None
) -> tuple[Check, torch.Tensor]:
    """Whether the certificate's scope is justified, and the input that its evidence is about."""
    if certificate.scope == "registry":
        if registry is None:
            raise InvalidInput(
                "this certificate's scope is registry: give the registry that issued it (on the command line --registry)."
            )
        found = registry.issuer(x, certificate)
        if found is None:
            return Check("scope", False, "the registry holds no such region around this input"), x
        apart = registry.apart(found)
        issued = f"the registry holds this region{'' if apart else ', and it meets a region of another answer'}"
        return Check("scope", apart, issued), found.centre[None].to(x)
    noise, stated = certificate.evidence.noise, isinstance(g.M, Stated)
    constant = noise.constant if noise.complete else constant_line(noise)
    # A record of version 0.1 with a user's generator does not state this; the generator itself does.
    honest = certificate.scope == "frozen" or (
        g.M.scope == "pipeline" and (bool(constant) or (not stated and not noise.complete))
    )
    if not honest:
        refusal = f"{noise.line} noise is not known to be the same for every input: the scope is frozen, not pipeline"
        return Check("scope", False, refusal), x
    if stated and certificate.scope == "pipeline":
        return Check("scope", True, f"this is about {STATED}, and the pipeline's noise was not given", False), x
    return Check("scope", True, SCOPES[certificate.scope]), x


def concluded(
    checks: tuple[Check, ...], certificate: Certificate, g: SmoothedClassifier, x: torch.Tensor, n: int, alpha: float
) -> Verdict:
    """The verdict of these checks: which noise it is about, and which scope it confirms."""
    stated = isinstance(g.M, Stated)
    tested = all(check.confirmed for check in checks if check.name in FRESH)
    verdict = Verdict(checks, n, alpha, STATED if stated else DEPLOYED, tested=tested)
    unknown = stated and certificate.scope == "pipeline"
    if not (verdict.stands and tested) or unknown or of_a_copy(certificate.evidence, g, x):
        return verdict
    return replace(verdict, confirms=certificate.scope)
