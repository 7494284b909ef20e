"""Benchmarks of single parts, each a click command that also runs as ``python -m``."""
