"""What the operator of a service allows, and what α is left of its life."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ucan.errors import InvalidInput
from ucan.plan import check_count


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The operator's limits on requests.

    Args:
        n: the most votes per request.
        least_alpha: the smallest α that may be asked for; smaller ones need more votes.
        alpha: the largest α that may be asked for.
        norms: the norms that may be asked for; None: all that the noise supports.
        seeds: whether a request may choose its seed. Whoever chooses inputs and seeds can find a false certificate.
        deadline: the longest time to an answer, in seconds.
        queue: the most requests that wait; further ones are refused (429).
        body: the largest body of a request, in bytes.
        slow: the longest time for the headers, and for the body of a request to arrive, in seconds.
        alpha_budget: the sum of α over all claims of this server's life; None: unlimited.
    """

    n: int = 100_000
    least_alpha: float = 1e-9
    alpha: float = 0.05
    norms: tuple[float, ...] | None = None
    seeds: bool = False
    deadline: float = 60.0
    queue: int = 256
    body: int = 10_000_000
    slow: float = 10.0
    alpha_budget: float | None = None

    def __post_init__(self) -> None:
        for name in ("n", "queue", "body"):
            check_count(f"the limit {name}", getattr(self, name))
        for name in ("deadline", "slow"):
            if not 0 < getattr(self, name) < 1e6:
                raise InvalidInput(
                    f"the limit {name} must be a number of seconds above 0, got {getattr(self, name)!r}."
                )
        if not 0 < self.least_alpha <= self.alpha < 1:
            raise InvalidInput(
                f"alpha is limited to a range within 0 and 1, got {self.least_alpha!r} to {self.alpha!r}."
            )
        if self.alpha_budget is not None and not 0 < self.alpha_budget < 1:
            raise InvalidInput(f"the budget of α must lie strictly between 0 and 1, got {self.alpha_budget!r}.")


class Ledger:
    """The α that the claims of a server's life have used. All of them are true at once with probability ≥ 1 − ``spent``.

    α is taken when a request is accepted, and given back where no vote was drawn for it. Several threads may use it.
    """

    def __init__(self, budget: float | None) -> None:
        self.budget = budget
        self._taken: list[float] = [0.0, 0.0]  # the sum, and what rounding took from it
        self._lock = threading.Lock()

    def take(self, alpha: float) -> bool:
        """Take α for a claim; False, and nothing is taken, if that much is not left."""
        with self._lock:
            if self.budget is not None and self.spent + alpha > self.budget * (1 + 1e-12):
                return False
            self._add(alpha)
            return True

    def give_back(self, alpha: float) -> None:
        """The α of a claim that was not made."""
        with self._lock:
            self._add(-alpha)

    @property
    def spent(self) -> float:
        """The sum of α so far."""
        return max(0.0, self._taken[0] - self._taken[1])

    def _add(self, alpha: float) -> None:
        total, lost = self._taken  # Kahan: a year of small numbers loses nothing
        step = alpha - lost
        new = total + step
        self._taken = [new, (new - total) - step]
