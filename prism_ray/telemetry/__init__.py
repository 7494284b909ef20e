"""Telemetry: what the application tells the world about itself, through a Redis-protocol store.

``store`` writes, ``reader`` reads, ``codec`` and ``keys`` say in which form and where, ``embedded``
runs a private server. Nothing here decides anything about serving.
"""
