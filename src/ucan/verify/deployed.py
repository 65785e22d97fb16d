"""The function that everybody calls: whether a certificate stands for a deployed classifier or router."""

from __future__ import annotations

import torch

from ucan.bounds import check_alpha
from ucan.certificate import Certificate
from ucan.errors import InvalidInput
from ucan.registry import Registry
from ucan.routed import Deployed, Routed
from ucan.verify.classifier import verify_classifier
from ucan.verify.router import verify_router
from ucan.verify.verdict import Verdict


def verify(
    certificate: Certificate,
    g: Deployed,
    x: torch.Tensor,
    n: int | None = None,
    alpha: float = 0.001,
    seed: int | None = None,
    registry: Registry | None = None,
) -> Verdict:
    """Check whether a certificate's claim about input x (1, *event) stands for g, the deployed classifier.

    Model, law, kind of noise, its settings and weights, μ and Σ at this input, number of classes, norm, view and the rule
    from p to the region are all taken from g; a difference is reported, and that check fails. Its numbers are recomputed from
    its own evidence, and n fresh samples (as many as its own, from 100 to 1,000,000) are drawn with a fresh random seed, or the
    one given, in the precision that the evidence names. A true claim is rejected with probability at most α; a claimed
    probability that is wrong by much more than 1/√n is rejected. A claim of scope ``registry`` is checked against its
    registry, and its samples are about the enrolled input.

    If g's noise comes from the certificate itself (``noise_of``), the verdict says so and confirms no pipeline.

    Of a router, the choice is checked against its selector and the answer against the chosen expert, at α/2 each.

    Args:
        certificate: the certificate to check.
        g: the deployed smoothed classifier, or router.
        x: the input (1, *event).
        n: the number of fresh samples; if None as many as the certificate has, from 100 to 1,000,000.
        alpha: the level of the test with fresh samples.
        seed: the seed of the fresh samples; random if None. It must not be the certificate's own.
        registry: the registry that issued the certificate, for scope ``registry``.
    """
    check_alpha(alpha)
    if not isinstance(certificate, Certificate):
        raise InvalidInput(
            f"verify takes a certificate, got {type(certificate).__name__}: an answer to another question is checked by "
            "ucan.verify_answer.verify_answer, and an abstention claims nothing."
        )
    shape = certificate.region.shape
    if tuple(x.shape[1:]) != shape:
        raise InvalidInput(
            f"the certificate is about inputs of shape {shape}, but this one has shape {tuple(x.shape[1:])}."
        )
    if len(x) != 1:
        raise InvalidInput(f"a certificate is about one input: give it as a batch of one, not of {len(x)}.")
    if isinstance(g, Routed):
        return verify_router(certificate, g, x, n, alpha, seed)
    return verify_classifier(certificate, g, x, n, alpha, seed, registry)
