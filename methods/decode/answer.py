"""The tokens of one turn, and the one rule that ends it: the first EOS, the length asked for, or a full context."""

from __future__ import annotations

from collections.abc import Sequence

from methods.base import Finish, Request


class Answer:
    """``ids`` are the prompt and what was committed behind it; no more than ``limit`` in all."""

    def __init__(self, request: Request, context: int) -> None:
        self.ids = list(request.prompt_ids)
        self._eos_ids = request.eos_ids
        self._by_length = len(self.ids) + request.max_new_tokens
        self.limit = min(self._by_length, context)

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.limit - len(self.ids)

    def commit(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], Finish | None]:
        """Append what fits, up to and including the first EOS. Returns it, and why the turn is over, if it is."""
        kept = tokens[: self.remaining]
        for count, token in enumerate(kept, 1):
            if token in self._eos_ids:
                self.ids.extend(kept[:count])
                return tuple(kept[:count]), "eos"
        self.ids.extend(kept)
        if self.remaining:
            return tuple(kept), None
        return tuple(kept), "length" if self.limit == self._by_length else "context"
