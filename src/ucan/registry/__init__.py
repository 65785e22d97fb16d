"""Registries: make per-input noise sound by storing each answer with its region."""

from ucan.registry.identity import region_norm
from ucan.registry.memory import Registry
from ucan.registry.regions import Entry

__all__ = ["Entry", "Registry", "region_norm"]
