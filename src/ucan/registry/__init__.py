"""Registries: make per-input noise sound by storing each answer with its region."""

from ucan.registry.identity import region_norm
from ucan.registry.memory import Registry

__all__ = ["Registry", "region_norm"]
