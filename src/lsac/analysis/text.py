"""Text from files and of folders, for files of ours."""

import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Characters that UTF-8 cannot write: half a pair in a JSON file, or a byte of a folder's name that is no text."""


def encodable(value: Any) -> Any:
    """A value of a JSON file, or another text, with a replacement for every character that UTF-8 cannot write."""
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, list):
        return [encodable(each) for each in value]
    if isinstance(value, dict):
        return {encodable(name): encodable(each) for name, each in value.items()}
    return value
