"""Per-input noise made sound by memory: a classifier that keeps to the answers and regions it has given."""

from ucan.registry.memory import Entry, Registry, region_norm

__all__ = ["Entry", "Registry", "region_norm"]
