"""SGLang's own chat processing as a process: a JSON line with a body in, a line with its ids out.

Runs where SGLang can be imported; no engine is started. The serving class is the real one; what it
gets as tokenizer manager is a holder of the real tokenizer and of no model.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any


class Unset:
    """Server settings, none of which was set."""

    def __getattr__(self, name: str) -> None:
        return None


class Oracle:
    """One model's ``OpenAIServingChat``."""

    def __init__(self, path: str) -> None:
        from sglang.srt.entrypoints.openai import serving_chat
        from sglang.srt.parser import template_manager
        from sglang.srt.utils.hf_transformers.tokenizer import get_tokenizer

        serving = Unset()
        serving_chat.get_serving = lambda: serving
        serving_chat.get_model = lambda: SimpleNamespace(context_length=None)
        template_manager.get_serving = lambda: serving
        self.tokenizer = get_tokenizer(path)
        config = SimpleNamespace(
            hf_config=SimpleNamespace(model_type="llama", architectures=["LlamaForCausalLM"]),
            is_multimodal=False,
            get_default_sampling_params=dict,
        )
        manager = SimpleNamespace(
            tokenizer=self.tokenizer,
            processor=None,
            model_config=config,
            config_value=lambda name: None,
            served_model_name="model",
            server_args=None,
            model_path=path,
        )
        templates = template_manager.TemplateManager()
        templates.initialize_templates(manager, path)
        self._chat = serving_chat.OpenAIServingChat(manager, templates)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """``{"ids": …}``, or ``{"error": …}`` where SGLang would answer 400."""
        from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

        if "prompt" in body:
            return {"ids": self.tokenizer(body["prompt"])["input_ids"]}
        try:
            request = ChatCompletionRequest(**body)
            refusal = self._chat._validate_request(request)
            if refusal:
                return {"error": refusal}
            internal, _ = self._chat._convert_to_internal_request(request)
        except ValueError as error:
            return {"error": str(error)}
        return {"ids": list(internal.input_ids)}


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    oracles: dict[str, Oracle] = {}
    for line in sys.stdin:
        question = json.loads(line)
        path = question["tokenizer"]
        if path not in oracles:
            oracles[path] = Oracle(path)
        print(json.dumps(oracles[path].answer(question["body"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
