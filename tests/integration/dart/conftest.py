"""SGLang's caches in this process, without an engine and without a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("sglang")

from loadgen.bench.tree_arms import prepare_process

prepare_process()
