"""Run folders that travel: packed with a manifest of hashes and a model card, and opened from a path, a URL or the hub."""

from typing import TYPE_CHECKING

from ucan.lazy import lazy_names

if TYPE_CHECKING:
    from ucan.sharing.opening import load
    from ucan.sharing.packing import push
    from ucan.sharing.pulling import pull

__all__ = ["load", "pull", "push"]

__getattr__, __dir__ = lazy_names(__name__, {"opening": "load", "packing": "push", "pulling": "pull"})
