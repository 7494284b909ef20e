"""DART without prism_ray's scheduler: tell a plain SGLang server what to keep.

Start SGLang with this package installed beside it, in a pool that is too small for the documents:

    python -m sglang.launch_server --model-path MODEL --port 30000 --enable-cache-report \
        --radix-cache-backend dart --max-total-tokens 2000

    python examples/dart_hints.py --url http://127.0.0.1:30000 --tokenizer MODEL

Ten documents are asked about, one of them wanted by the requests that are still to come. The last
question about that one finds it cached, although nine others went through the pool since.
"""

from __future__ import annotations

import argparse
from hashlib import blake2b
from typing import Any

import httpx
from transformers import AutoTokenizer

from prism_ray.dart import AnchorMark, NodeKind, path_keys
from prism_ray.dart.hints import dump_demand, envelope
from prism_ray.model import Atom, Demand, DemandTable

DOCUMENTS = [
    f"Report {n}. " + f"Station {n} measured {n * 7} degrees and rain. " * 30 for n in range(10)
]


def digest(text: str) -> bytes:
    """A segment's name. Anything that is equal exactly where the text is will do."""
    return blake2b(text.encode(), digest_size=16).digest()


class Client:
    """Asks about one document a time and says which documents are wanted."""

    def __init__(self, url: str, tokenizer: Any) -> None:
        self._http = httpx.Client(base_url=url, timeout=300)
        self._tokenizer = tokenizer
        self._version = 0

    def ask(self, document: str, question: str, wanted: list[str]) -> int:
        """Cached tokens of the prompt, as the server reports them."""
        # Document and question are tokenized apart: an anchor must lie between two tokens.
        front = self._tokenizer.encode(document, add_special_tokens=False)
        rest = self._tokenizer.encode(question, add_special_tokens=False)
        place = path_keys((Atom(digest(document), len(front)),))[-1]
        marks = [AnchorMark(len(front), NodeKind.REUSABLE, digest(document), place)]
        self._version += 1
        rows = tuple(Demand(digest(text), 1.0 + n) for n, text in enumerate(wanted))
        demand = dump_demand(DemandTable(self._version, rows), epoch="example")
        body = {
            "input_ids": [*front, *rest],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "kv_hints": envelope(f"example-{self._version}", marks, demand),
        }
        answer = self._http.post("/generate", json=body)
        answer.raise_for_status()
        return int(answer.json()["meta_info"]["cached_tokens"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--url", default="http://127.0.0.1:30000")
    arguments.add_argument("--tokenizer", required=True, help="the served model's directory")
    options = arguments.parse_args()
    client = Client(options.url, AutoTokenizer.from_pretrained(options.tokenizer))
    wanted = DOCUMENTS[0]
    for number, document in enumerate(DOCUMENTS):
        cached = client.ask(document, "What was measured?", wanted=[wanted])
        print(f"document {number}: {cached} tokens cached")
    cached = client.ask(wanted, "Did it rain?", wanted=[])
    print(f"again document 0: {cached} tokens cached")


if __name__ == "__main__":
    main()
