"""Credentials: taken out of whatever is written, and refused where one is given as a setting.

Known by their own form (``hf_...``, a user in a URL), by the name they are given under, or because they stand in this
process's environment under such a name.
"""

from __future__ import annotations

import os
import re

_FORM = (
    r"\bhf_[A-Za-z0-9]{20,}\b|\bgh[opsu]_\w{16,}|\bgithub_pat_\w{16,}|\bsk-[\w-]{16,}|\bAKIA[0-9A-Z]{12,}"
    r"|\beyJ[\w-]{8,}\.[\w.-]+|\bBearer\s+\S+|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
# Only the singular: max_new_tokens is a setting.
_NAMED = r"((?:\b|_)(?:token|(?:secret|passw(?:or)?d|api_?key|access_?key)\w*)['\"]?\s*[=:]\s*)[^\s,}\]]+"
_EITHER = re.compile(f"{_NAMED}|{_FORM}", re.IGNORECASE)
_VARIABLE = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|KEY)$", re.IGNORECASE)
_HIDDEN = "<redacted>"


def redact(text: str) -> str:
    """The text without what looks like a credential."""
    for value in _from_environment():
        text = text.replace(value, _HIDDEN)
    return _EITHER.sub(lambda match: (match.group(1) or "") + _HIDDEN, text)


def _from_environment() -> list[str]:
    """Values of 12 characters or more only: a shorter one may be a word, which would vanish from every text."""
    found = [value for name, value in os.environ.items() if _VARIABLE.search(name) and len(value) >= 12]
    return sorted(found, key=len, reverse=True)  # longest first: one may be the beginning of another
