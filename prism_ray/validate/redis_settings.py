"""Checks Redis settings: the shape of each line, and the settings that decide what may be lost."""

from __future__ import annotations

import re
import shlex

from prism_ray.validate.report import Report

_YES_NO = re.compile("yes|no")
_BYTES = re.compile(r"\d+([kmg]b?)?", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")

FORMS = {
    "aof-use-rdb-preamble": _YES_NO,
    "appendfsync": re.compile("always|everysec|no"),
    "appendonly": _YES_NO,
    "daemonize": _YES_NO,
    "databases": _NUMBER,
    "maxclients": _NUMBER,
    "maxmemory": _BYTES,
    "maxmemory-policy": re.compile(
        "noeviction|(allkeys|volatile)-(lru|lfu|random)|volatile-ttl",
    ),
    "port": _NUMBER,
    "protected-mode": _YES_NO,
    "tcp-backlog": _NUMBER,
    "tcp-keepalive": _NUMBER,
    "timeout": _NUMBER,
    "tls-port": _NUMBER,
}
"""Settings of one value, and what it may be; other settings are the server's to check."""

PASSWORDS = ("requirepass", "masterauth", "tls-key-file-pass")


def check_redis_settings(text: str, report: Report) -> None:
    """A file for ``redis-server`` or ``valkey-server``."""
    settings: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            name, *values = shlex.split(line)
        except ValueError as error:
            report.refuse(f"line {number}", f"quotes that close ({error})", line)
            continue
        name = name.lower()
        if not values:
            report.refuse(f"line {number}", f"a value for {name}", line)
        elif name in FORMS and not (len(values) == 1 and FORMS[name].fullmatch(values[0])):
            report.refuse(name, f"{FORMS[name].pattern}", " ".join(values))
        if name in PASSWORDS:
            report.refuse(name, "to be given at start: a password has no place in a file", "…")
        settings[name] = values
    if "maxmemory" not in settings:
        report.notes.append("advice: without maxmemory the server takes what the machine has")
    policy = settings.get("maxmemory-policy", ["noeviction"])[0]
    if policy.startswith("allkeys-"):
        report.notes.append(f"advice: {policy} may drop GCS's tables; keep GCS on another server")
