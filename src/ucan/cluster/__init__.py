"""Votes counted on many machines: Ray places the workers, the votes are those of one process."""

from ucan.cluster.spread import spread

__all__ = ["spread"]
