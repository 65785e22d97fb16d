"""Count votes on many machines with Ray; the votes are the same as those of one process."""

from ucan.cluster.spread import spread

__all__ = ["spread"]
