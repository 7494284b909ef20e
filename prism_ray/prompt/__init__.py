"""Prompts: from an OpenAI body to a Skeleton, exact token counts, and the ids of a decided order."""

from prism_ray.prompt.errors import PromptError
from prism_ray.prompt.fields import strip_prism
from prism_ray.prompt.limits import PromptLimits
from prism_ray.prompt.prepared import Assembled, PreparedPrompt
from prism_ray.prompt.splitter import Splitter
from prism_ray.prompt.tokenizer import PromptTokenizer, TokenizerNotFound, load_tokenizer

__all__ = [
    "Assembled",
    "PreparedPrompt",
    "PromptError",
    "PromptLimits",
    "PromptTokenizer",
    "Splitter",
    "TokenizerNotFound",
    "load_tokenizer",
    "strip_prism",
]
