"""Adapters to other packages, one file each; each needs its own extra and is imported by those who use it."""
