"""Which UCAN this is: what every run is marked with. This module imports nothing."""

__version__ = "0.1.0"
