"""Results: the store of a run, the metrics, and common file formats."""

from ucan.results.store import Store

__all__ = ["Store"]
