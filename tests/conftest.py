"""What holds for every test: how hypothesis draws its examples."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The same source draws the same examples, so that a run says the same twice; `make explore` draws new ones.
# How long an example takes is the machine's business.
slowly = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **slowly)
settings.register_profile("explore", derandomize=False, print_blob=True, **slowly)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
