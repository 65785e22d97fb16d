"""Per-input noise made sound by memory: a classifier that keeps to the answers and regions it has given."""

from ucan.registry.identity import region_norm
from ucan.registry.memory import Entry, Registry

__all__ = ["Entry", "Registry", "region_norm"]
