"""What a chat template expects as a message's content: one string, or a list of parts.

Follows SGLang's rule (its ``detect_jinja_template_content_format``), because the rendered text must
be the engine's.
"""

from __future__ import annotations

from enum import StrEnum

import jinja2
from jinja2 import nodes

_MEDIA_WORDS = ("image", "audio", "video", "vision")
_MESSAGE_NAMES = ("message", "msg", "m")


class ContentFormat(StrEnum):
    STRING = "string"
    """Text parts are joined with one space before the template sees them."""
    PARTS = "parts"
    """The template walks over the parts itself."""


def content_format(template: str, environment: jinja2.Environment) -> ContentFormat:
    """PARTS if the template loops over ``message.content`` (or is a media model's), else STRING."""
    if any(word in template for word in _MEDIA_WORDS):
        return ContentFormat.PARTS
    try:
        tree = environment.parse(template)
    except jinja2.TemplateError:
        return ContentFormat.STRING
    loops = tree.find_all(nodes.For)
    return (
        ContentFormat.PARTS
        if any(_is_content(loop.iter) for loop in loops)
        else ContentFormat.STRING
    )


def _is_content(node: nodes.Node | None) -> bool:
    """Is it ``message.content`` or ``message['content']``, perhaps sliced, filtered or tested?"""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if isinstance(node, nodes.Getattr):
        key: object = node.attr
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        key = node.arg.value
    else:
        return False
    owner = node.node
    return key == "content" and isinstance(owner, nodes.Name) and owner.name in _MESSAGE_NAMES
