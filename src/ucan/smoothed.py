"""The smoothed classifier g: the paper's two algorithms, a page each, and the checks that stand before them."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ucan.bounds import lower_bound, majority_p_value, top_two_p_value, upper_bound
from ucan.certificate import Abstention, Certificate, Evidence, Prediction
from ucan.errors import InvalidInput
from ucan.generators import Generator, Isotropic
from ucan.laws import Law
from ucan.plan import Bound, CertifyPlan, PredictPlan, Test
from ucan.sidecar import input_hash
from ucan.votes import Classifier, Stream, Votes, block_size, classify_samples


class SmoothedClassifier:
    """g(x) = the most probable answer of the classifier f under noise, argmax_c P(f(x + μ + Σε) = c).

    ``model`` is f: any callable that maps a batch (n, *event) to logits (n, num_classes) or to class indices (n,).
    ``law`` draws ε; ``generator`` is the paper's M, which chooses μ and Σ (None: isotropic). Set ``on_votes`` to be told
    of every block of votes.
    """

    def __init__(
        self,
        model: Callable[[torch.Tensor], Any],
        law: Law,
        generator: Generator | None = None,
        num_classes: int = 10,
    ) -> None:
        if not isinstance(law, Law):
            raise InvalidInput(f"law must be a noise law such as ucan.Gaussian(scale=0.5), got {law!r}.")
        if generator is not None and not isinstance(generator, Generator):
            raise InvalidInput(f"generator must be a ucan.Generator such as ucan.Fixed(scale), got {generator!r}.")
        self.f = Classifier(model, num_classes)
        self.law = law
        self.M = (Isotropic() if generator is None else generator).eval()
        self.on_votes: Callable[[int], None] | None = None

    def certify(
        self,
        x: torch.Tensor,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        norm: float = 2,
        seed: int = 0,
        batch_size: int | None = None,
        bound: Bound = "binary",
    ) -> list[Certificate | Abstention]:
        """Algorithm 1, UCAN-Certification, for each of a batch of inputs (batch, *event).

        With probability at least 1 − α, independently for each input, a certificate is true: the answer is its
        prediction at every x + δ with ‖Σ⁻¹δ‖ₚ < R. Whose answer, its scope says. ``bound="two-class"`` bounds the top
        class and its runner-up at α/2 each, instead of giving all the rest to the runner-up.
        """
        plan = CertifyPlan(n0, n, alpha, norm, seed, batch_size, bound)
        self.law.radius(0.5, norm, x[0].numel() if isinstance(x, torch.Tensor) and len(x) else 1)
        return [self._certify_one(x1, plan) for x1 in self.check_inputs(x)]

    def _certify_one(self, x: torch.Tensor, plan: CertifyPlan) -> Certificate | Abstention:
        """Algorithm 1 for one input (1, *event), in the paper's symbols."""
        n0, n, alpha = plan.n0, plan.n, plan.alpha
        M = self.M.at(x)  # μ, Σ ← M
        counts_select = self._classify_samples(M, x, n0, plan, "select").counts
        c_A = int(counts_select.argmax())
        votes = self._classify_samples(M, x, n, plan, "estimate")
        n_A, n_B = int(votes.counts[c_A]), _largest_other(votes.counts, c_A)
        if plan.bound == "binary":
            p_A, p_B = lower_bound(n_A, n, alpha), None
        else:
            p_A, p_B = lower_bound(n_A, n, alpha / 2), upper_bound(n_B, n, alpha / 2)
        R = self.law.radius(p_A, plan.norm, x.numel(), p_B)

        evidence = self._evidence(x, votes, n0, n, plan, plan.bound)
        if R == 0:
            rival = "1/2" if p_B is None else f"the runner-up's bound {p_B:.6f}"
            reason = f"the probability of class {c_A} is bounded by {p_A:.6f}, which is not above {rival}"
            return Abstention(plan.norm, M.scope, evidence, reason, p_A)
        region, mu = M.region(self.law, p_A, plan.norm, x, p_B), M(x)[0]
        return Certificate(
            plan.norm,
            M.scope,
            evidence,
            prediction=c_A,
            p_lower=p_A,
            p_upper=p_B,
            region=region,
            alm=region.mean_scale * R,
            mean=mu.detach().cpu() if mu.any() else None,
        )

    def predict(
        self,
        x: torch.Tensor,
        n: int = 1000,
        alpha: float = 0.001,
        seed: int = 0,
        test: Test = "majority",
        batch_size: int | None = None,
    ) -> list[Prediction | Abstention]:
        """Algorithm 2, UCAN-Prediction, for each of a batch of inputs: g(x), or an abstention.

        An answer differs from g(x) with probability at most α. ``test="majority"`` is the paper's (one-sided, so that
        it holds for any number of classes); ``test="top-two"`` also answers where no class has a majority.
        """
        plan = PredictPlan(n, alpha, seed, test, batch_size)
        return [self._predict_one(x1, plan) for x1 in self.check_inputs(x)]

    def _predict_one(self, x: torch.Tensor, plan: PredictPlan) -> Prediction | Abstention:
        """Algorithm 2 for one input (1, *event), in the paper's symbols."""
        n, alpha = plan.n, plan.alpha
        M = self.M.at(x)  # μ, Σ ← M
        votes = self._classify_samples(M, x, n, plan, "predict")
        c_A = int(votes.counts.argmax())
        n_A, n_B = int(votes.counts[c_A]), _largest_other(votes.counts, c_A)
        p_value = majority_p_value(n_A, n) if plan.test == "majority" else top_two_p_value(n_A, n_B)

        evidence = self._evidence(x, votes, 0, n, plan, plan.test)
        if p_value <= alpha:
            return Prediction(None, M.scope, evidence, prediction=c_A, p_value=p_value)
        reason = f"class {c_A} leads with {n_A} of {n} votes, too few for the {plan.test} test at alpha = {alpha:g}"
        return Abstention(None, M.scope, evidence, reason)

    # --- what both algorithms stand on ---

    def _classify_samples(
        self, M: Generator, x: torch.Tensor, n: int, plan: CertifyPlan | PredictPlan, phase: str
    ) -> Votes:
        size = plan.batch_size or block_size(x.numel(), n)
        stream = Stream(plan.seed, input_hash(x), phase)
        return classify_samples(self.f, M, self.law, x, n, stream, size, self.on_votes)

    def _evidence(
        self, x: torch.Tensor, votes: Votes, n0: int, n: int, plan: CertifyPlan | PredictPlan, bound: str
    ) -> Evidence:
        return Evidence(
            counts=tuple(votes.counts.tolist()),
            invalid=votes.invalid,
            n0=n0,
            n=n,
            alpha=plan.alpha,
            seed=plan.seed,
            law=self.law,
            generator=self.M.describe(),
            bound=bound,
            batch_size=plan.batch_size or block_size(x.numel(), n),
            precision=str(self.f.dtype or x.dtype).removeprefix("torch."),
            weights_hash=weights_hash(self.f.model),
            input_hash=input_hash(x),
        )

    def check_inputs(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The inputs one by one, each (1, *event) and on the model's device, or an error before any work."""
        self.f.check_ready()
        if not isinstance(x, torch.Tensor):
            raise InvalidInput(f"x must be a torch tensor of shape (batch, *event), got {type(x).__name__}.")
        if not x.is_floating_point():
            raise InvalidInput(
                f"x must hold floating-point numbers (pixels in [0, 1]), got {x.dtype}: x.float() / 255?"
            )
        if x.ndim < 2 or x.numel() == 0:
            raise InvalidInput(f"x must be a non-empty batch of shape (batch, *event), got {tuple(x.shape)}.")
        if not torch.isfinite(x).all():
            first = (~torch.isfinite(x)).nonzero()[0].tolist()
            raise InvalidInput(f"x{first} is {x[tuple(first)].item()}: every pixel must be finite.")
        device = self.f.device or x.device
        self.M.to(device)
        inputs = [x[i : i + 1].detach().to(device) for i in range(len(x))]
        with torch.inference_mode():
            self.f(self.M.at(inputs[0]).view(inputs[0]))  # a model that cannot answer says so now
        return inputs


# Hashing a large model takes a good part of a second: do it once per state of its weights.
_HASHES: weakref.WeakKeyDictionary[nn.Module, tuple[Any, str]] = weakref.WeakKeyDictionary()


def weights_hash(model: Any) -> str | None:
    """SHA-256 over a module's parameters and buffers, by name; None for a plain function."""
    if not isinstance(model, nn.Module):
        return None
    state = sorted(model.state_dict().items())
    version = tuple((t.data_ptr(), t._version) for _, t in state if isinstance(t, torch.Tensor))
    known = _HASHES.get(model)
    if known is None or known[0] != version:
        digest = hashlib.sha256()
        for name, tensor in state:
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        known = _HASHES[model] = (version, digest.hexdigest())
    return known[1]


def _largest_other(counts: torch.Tensor, c_A: int) -> int:
    """The runner-up's count: bounding it bounds the true runner-up, whose count is no larger."""
    others = counts.clone()
    others[c_A] = -1
    return int(others.max())
