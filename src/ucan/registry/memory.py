"""The registry: certify with stored answers, so that no two regions with different answers ever overlap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ucan.certificate import ABSTAINED, Abstention, Certificate, Prediction
from ucan.errors import InvalidInput, UnsupportedNorm
from ucan.evidence import Evidence
from ucan.laws import norm_name
from ucan.named_bounds import bound_named
from ucan.plan import CertifyPlan, check_options, given_seed
from ucan.region import Region
from ucan.registry.database import Database, Row
from ucan.registry.identity import known_by, region_norm, told_by
from ucan.registry.regions import Entry, Regions, flat
from ucan.registry.separation import MARGIN, Vector, check_kind, size_bounds
from ucan.scales import Scalar, Scale, as_scale
from ucan.scales.base import same_map
from ucan.sidecar import batch_hash
from ucan.smoothed import SmoothedClassifier
from ucan.stop_option import parse_stop


class Registry:
    """Certificates whose guarantee holds for the deployed classifier, with any noise.

    A registry makes a classifier with a memory. An input inside a stored region gets that region's answer. Any other input is
    certified by g, its region is shrunk until it overlaps no stored region with another answer, and it is stored *before* the
    answer is returned; an abstention is stored as an answer for its input alone. So every answer stays valid on its whole
    region, whatever inputs follow: scope ``registry``. That it is also the most probable answer under its noise holds for
    each enrolment with probability at least 1 − α.

    ``path`` is a file that several processes may use at once; all replicas of a deployment must share it. ``norm`` is
    the norm of its regions; without it, the norm in the file; for a new file, the first region decides. A
    registry belongs to one classifier (weights, noise, law, precision) at one α, those of its first enrolment. See
    docs/registry.md for what this does and does not give.
    """

    def __init__(self, path: str | Path, norm: float | None = None) -> None:
        self._store = Database(Path(path), norm)
        self._regions = Regions(self._store)

    @property
    def norm(self) -> float | None:
        """The norm of its regions; None if not set yet."""
        return self._regions.norm

    def certify(self, g: SmoothedClassifier, x: torch.Tensor, **options: Any) -> list[Certificate | Abstention]:
        """The registry's answer for each of a batch (batch, *event), in order; ``options`` are those of ``g.certify``.

        The norm is the registry's unless ``norm`` is given (ℓ2 if the registry has none yet).

        A certificate's region is around its input. For an input inside a stored region it is the stored Σ with the
        radius that is left, Rᵢ − ‖Σᵢ⁻¹(x − xᵢ)‖, and the evidence is that of the enrolled input.
        """
        if not isinstance(g, SmoothedClassifier):
            raise InvalidInput(f"a registry takes a ucan.SmoothedClassifier, and this is a {type(g).__name__}.")
        check_options("a registry's certify", options, CertifyPlan)
        own = {} if self.norm is None else {"norm": self.norm}
        seed = options.pop("seed", 0)
        plan = CertifyPlan(**{**own, **options, "seed": given_seed(seed), "stop": parse_stop(options.get("stop"))})
        inputs = g.check_inputs(x, plan.norm)
        return [outcome for _, outcome in self.certify_each(g, inputs, g.seeded(plan, seed, batch_hash(inputs)))]

    def predict(
        self, g: SmoothedClassifier, x: torch.Tensor, n: int = 1000, alpha: float = 0.001, **options: Any
    ) -> list[Prediction | Abstention]:
        """The registry's answer alone, for each of a batch (batch, *event); ``options`` are those of ``certify``.

        Inside a stored region it is that region's answer. Any other input is certified with n samples and enrolled, so that
        the answer is stored, and agrees with what ``certify`` returns for this input from now on.
        """
        outcomes = self.certify(g, x, n=n, alpha=alpha, **options)
        inputs = g.check_inputs(x)
        return [answer_alone(o, g.arithmetic_error(g.M.at(x1), x1)) for o, x1 in zip(outcomes, inputs, strict=True)]

    def certify_each(
        self, g: SmoothedClassifier, inputs: Iterable[torch.Tensor], plan: CertifyPlan
    ) -> Iterator[tuple[int, Certificate | Abstention]]:
        """(number, answer) for inputs (1, *event), in order, each on disk before it is returned."""
        classifier: dict[str, Any] = {}
        for i, x in enumerate(one.to(g.f.device or one.device) for one in inputs):
            classifier = classifier or self.check(g, x, plan)
            answer = self.stored(x, plan.norm)
            if answer is None:
                self._check_room(plan.family)
                ((_, outcome),) = g.certify_each([x], plan)
                answer = self.enrol(x, outcome, classifier)
            yield i, answer

    def stored(self, x: torch.Tensor, norm: float) -> Certificate | Abstention | None:
        """The answer for an input (1, *event) inside a stored region, as ``certify`` gives it; None outside of them all."""
        found = self.lookup(x)
        if found is None:
            return None
        with self._store.storage():
            return self._given(found, x, norm)

    def check(self, g: SmoothedClassifier, x: torch.Tensor, plan: CertifyPlan) -> dict[str, Any]:
        """Refuse, before any vote, other regions, another classifier or another α.

        Returns the classifier's identity, for inputs like x (1, *event).
        """
        if plan.budget is not None:
            raise InvalidInput("a registry stores regions and supports no budgets: leave the budget out.")
        made = region_norm(g, x, plan.norm)
        if self.norm not in (None, made):
            raise UnsupportedNorm(
                f"this registry holds {norm_name(self._regions.metric)} regions; {type(g.law).__name__} noise against "
                f"{norm_name(plan.norm)} gives {norm_name(made)} regions. Use another file: Registry(path, norm=…)."
            )
        classifier = known_by(g, x, plan)
        if classifier["model"] is None:
            raise InvalidInput(
                "a registry belongs to one classifier, and this model cannot be identified: give it a name, "
                "SmoothedClassifier(…, model_id=…)."
            )
        with self._store.storage():
            self._store.check_classifier(classifier)
            knows_noise = self._store.knows_noise()
        if not knows_noise:
            self._check_stored_noise(g)
        self._check_room(plan.family)
        return classifier

    def _check_room(self, family: int) -> None:
        """Refuse more enrolments than α was shared over."""
        if family > 1 and len(self) >= family:
            raise InvalidInput(
                f"this registry's α is shared by {family} enrolments, a number fixed in advance, and all of them are used: "
                f"start another file. Inputs inside stored regions are still answered by lookup."
            )

    def _check_stored_noise(self, g: SmoothedClassifier) -> None:
        """For a file that does not state its noise: refuse g if its noise at the last enrolled input differs."""
        newest_first = map(self._regions.entry, range(len(self), 0, -1))
        entry = next((entry for entry in newest_first if entry.radius > 0), None)
        if entry is None:
            return
        x = entry.centre[None].to(g.f.device or entry.centre.device)
        if not same_map(as_scale(g.M.at(x)(x)[1]), entry.scale, x.shape[1:], 1e-3):
            raise InvalidInput(
                "this registry holds the answers of another classifier: at an enrolled input, Σ differs now. Start another "
                "file for this classifier."
            )

    def enrol(
        self, x: torch.Tensor, outcome: Certificate | Abstention, classifier: Mapping[str, Any] | None = None
    ) -> Certificate | Abstention:
        """Store the result of ``g.certify`` for one input (1, *event), shrunk as needed; return the registry's answer.

        If x is inside a stored region, that region's answer is returned and nothing is stored. When this returns, the answer
        is on disk. ``classifier`` is what ``check`` returned: it says more than the outcome's evidence alone.
        """
        point, about = flat(x), outcome.evidence.input_hash
        if len(about) == 64 and not outcome.evidence.is_about(x):  # a hash, and that of another input
            raise InvalidInput("this outcome is about another input: give what certify returned for this input.")
        if outcome.norm is None or (isinstance(outcome, Certificate) and outcome.region.dim != len(point)):
            raise InvalidInput("a registry takes what certify returned for this input.")
        with self._store.storage():
            try:
                with self._store.transaction():
                    self._store.settle_shape(x.shape[1:])
                    self._store.settle_classifier({**(classifier or {}), **told_by(outcome.evidence)})
                    if isinstance(outcome, Certificate):
                        self._store.settle_norm(outcome.region.norm)
                    self._regions.refresh()
                    found = self._regions.containing(point)
                    if found is None:
                        self._check_room(outcome.evidence.family)
                        answer, scale = self._fitted(point, outcome)
                        self._keep(x, point, answer, scale)
            except BaseException:
                self._regions.forget()
                raise
            return self._given(found, x, outcome.norm) if found is not None else answer

    def lookup(self, x: torch.Tensor) -> Entry | None:
        """The first enrolment whose region contains this input (1, *event), or None."""
        point = flat(x)
        with self._store.storage():
            self._store.check_shape(x.shape[1:])
            self._regions.refresh()
            return self._regions.containing(point)

    def issuer(self, x: torch.Tensor, certificate: Certificate) -> Entry | None:
        """The enrolment that a certificate about x (1, *event) comes from; None if this registry did not issue it."""
        found = self.lookup(x)
        if found is None or found.answer != certificate.prediction or not _same(found.scale, certificate.region.scale):
            return None
        used, _ = size_bounds(found.scale, self._regions.metric, flat(x) - flat(found.centre[None]))
        kept = certificate.region.norm == self.norm and certificate.region.radius <= (found.radius - used) * (
            1 + MARGIN
        )
        return found if kept and certificate.evidence.is_about(found.centre[None]) else None

    def apart(self, entry: Entry) -> bool:
        """Whether the region of ``entry`` meets none of another answer, as in every registry that made its regions itself."""
        with self._store.storage():
            self._regions.refresh()
            return self._regions.apart(entry)

    def rivals(self, x: torch.Tensor, answer: int | None, count: int) -> list[Entry]:
        """Enrolments with another answer, ordered by the distance of their regions to this input (1, *event)."""
        point = flat(x)
        with self._store.storage():
            self._store.check_shape(x.shape[1:])
            self._regions.refresh()
            return self._regions.rivals(point, answer, count)

    def copy(self, path: str | Path) -> Registry:
        """Copy the registry to another file."""
        if Path(path).exists():
            raise InvalidInput(f"{path} already exists: give a new file for the copy.")
        with self._store.storage():
            self._store.copy(Path(path))
        return Registry(path)

    def __len__(self) -> int:
        with self._store.storage():
            self._regions.refresh()
        return self._regions.count

    def __iter__(self) -> Iterator[Entry]:
        """All enrolments, in order."""
        for number in range(1, len(self) + 1):  # none is ever removed
            with self._store.storage():
                entry = self._regions.entry(number)
            yield entry

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- answers ---

    def _fitted(self, point: Vector, outcome: Certificate | Abstention) -> tuple[Certificate | Abstention, int]:
        """The outcome with its region shrunk to the room that is left, an abstention where there is none; and its Σ."""
        if isinstance(outcome, Abstention):
            return replace(outcome, scope="registry"), self._store.scale_id(Scalar(1.0))
        region = outcome.region
        if not math.isfinite(region.radius):
            raise InvalidInput("a registry stores only regions of finite radius.")
        check_kind(region.scale, region.norm)
        number = self._store.scale_id(region.scale)
        radius = self._regions.room(point, number, region.radius, outcome.prediction)
        if radius == 0 < region.radius:
            reason = "the input touches the region of an enrolled input with another answer"
            return Abstention(outcome.norm, "registry", outcome.evidence, reason, outcome.p_lower), number
        return _resized(replace(outcome, scope="registry"), radius), number

    def _keep(self, x: torch.Tensor, point: Vector, answer: Certificate | Abstention, number: int) -> None:
        """Write the answer's row; within the transaction that made it."""
        record = {"p_lower": answer.p_lower, "evidence": answer.evidence.to_dict()}
        tensors = {"centre": x[0]}
        if isinstance(answer, Certificate):
            label, radius = answer.prediction, answer.region.radius
            record |= {"p_upper": answer.p_upper, "alm": answer.alm}
            if answer.mean is not None:
                tensors["mean"] = answer.mean
        else:
            label, radius = ABSTAINED, 0.0
            record["reason"] = answer.reason
        self._regions.add(Row(label, radius, number, tensors, record), point, x.shape[1:])

    def _given(self, entry: Entry, x: torch.Tensor, norm: float) -> Certificate | Abstention:
        """The answer of an enrolment for an input that it contains."""
        row, metric = self._store.read(entry.number), self._regions.metric
        evidence, record = Evidence.from_dict(row.record["evidence"]), row.record
        if entry.answer is None:
            return Abstention(norm, "registry", evidence, record["reason"], record["p_lower"])
        _, used = size_bounds(entry.scale, metric, flat(x) - flat(entry.centre[None]))
        region = Region.sharing(entry.scale, entry.radius, metric, x.shape[1:])
        # ALM is said in the norm that is asked for now; at any p the law's radii stand in the same proportion.
        asked, own = (evidence.law.radius(0.75, q, x.numel()) for q in (norm, metric)) if norm != metric else (1, 1)
        stored = Certificate(
            norm,
            "registry",
            evidence,
            prediction=entry.answer,
            p_lower=record["p_lower"],
            p_upper=record["p_upper"],
            region=region,
            alm=region.alm * asked / own,
            mean=row.tensors.get("mean"),
        )
        return _resized(stored, max(0.0, entry.radius - used))


def answer_alone(outcome: Certificate | Abstention, tau: float) -> Prediction | Abstention:
    """What a certificate answers, with the p-value of the test that goes with its bound; τ is the arithmetic's."""
    if isinstance(outcome, Abstention):
        return outcome
    evidence, c_A = outcome.evidence, outcome.prediction
    p_value = bound_named(evidence.bound).p_value(evidence.ballot(c_A), tau)
    return Prediction(None, "registry", evidence, prediction=c_A, p_value=p_value)


def _resized(certificate: Certificate, radius: float) -> Certificate:
    """The same claim on a smaller region."""
    region = certificate.region
    if radius >= region.radius:
        return certificate
    smaller = Region.sharing(region.scale, radius, region.norm, region.shape)
    return replace(certificate, region=smaller, alm=certificate.alm * radius / region.radius)


def _same(a: Scale, b: Scale) -> bool:
    """Whether two Σ are equal, whatever their precision."""
    return a.same_as(b.to("cpu"), lambda mine, theirs: torch.equal(mine.double(), theirs.double()))
