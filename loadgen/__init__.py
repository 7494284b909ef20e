"""Traces, arrivals, an open-loop client, metrics and measurements. Serves nothing, schedules nothing.

Usable against any OpenAI-compatible server; what only prism_ray answers with is optional everywhere.
"""
