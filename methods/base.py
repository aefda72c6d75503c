"""The types that loop, drafters and verifier exchange, and the Drafter protocol, which a method implements.

Dimension names used in shape annotations throughout:

* ``prompt``  tokens of the prompt
* ``rows``    rows of one target forward: the root, the draft nodes, then auxiliary rows
* ``nodes``   the leading rows that form the draft tree, root included
* ``heads``   the leading rows whose logits are computed
* ``vocab``   the target's vocabulary
* ``hidden``  the target's hidden size
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from jaxtyping import Bool, Float, Int
from torch import Tensor

from methods.common.limits import check_sampling
from methods.decode.draws import Draws
from methods.decode.tree import Tree


@dataclass(frozen=True)
class Sampling:
    """How the target's next token is chosen. ``temperature=0`` is greedy; ``top_p=1`` and ``top_k=0`` are off.

    Warpers apply in the order temperature, top-k, top-p (that of ``transformers``). Processors that look at the
    text so far (repetition penalty, ...) are not offered: inside a tree every node has a text of its own.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_sampling(self.temperature, self.top_p, self.top_k)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True)
class Request:
    """One turn to decode. ``question`` and ``turn`` key the random draws, so resuming or reordering changes no text."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    eos_ids: frozenset[int] = frozenset()
    sampling: Sampling = Sampling()
    question: str = "0"
    turn: int = 0


@dataclass(frozen=True)
class Prefill:
    """What the prompt's forward gave: post-norm hidden states of every prompt token, and the first answer token."""

    hidden: Float[Tensor, "prompt hidden"]
    root: int


@dataclass(frozen=True)
class Context:
    """What a drafter may look at when it proposes: every committed token (the root is the last), what may still
    be emitted, how to sample, and the request's random draws."""

    ids: list[int]
    remaining: int
    sampling: Sampling
    draws: Draws

    @property
    def root_position(self) -> int:
        return len(self.ids) - 1


Rule = Literal["match", "chain", "siblings"]


@dataclass(frozen=True)
class Draft:
    """A proposal: a rooted tree of tokens and, where needed, auxiliary rows that ride in the same forward.

    ``tokens[0]`` is the root. The first ``tree.size`` rows are the tree; rows after it (lookahead's window) are
    never accepted and bring their own ``mask`` (which keys of this forward each row sees) and ``offsets`` (position
    minus the root's). ``logit_rows`` leading rows get logits (default: the tree). ``q`` holds the distributions that
    tokens were really drawn from: for ``chain``, row i is that of node i+1; for ``siblings``, row j is that of the
    children of node ``q_nodes[j]``. ``log_confidence`` is the draft's own log-probability of each node below the root
    given its parent, where a method has it at no cost; no rule reads it.
    """

    tokens: Int[Tensor, "rows"]
    tree: Tree
    rule: Rule = "match"
    mask: Bool[Tensor, "rows rows"] | None = None
    offsets: Int[Tensor, "rows"] | None = None
    logit_rows: int | None = None
    q: Float[Tensor, "drawn vocab"] | None = None
    q_nodes: tuple[int, ...] = ()
    log_confidence: Float[Tensor, "drafted"] | None = None

    @property
    def rows(self) -> int:
        return int(self.tokens.shape[0])


@dataclass(frozen=True)
class Outcome:
    """What became of a draft. ``path`` are the accepted rows, root first (a+1 of them); ``tokens`` the a accepted
    tokens and the target's own, as committed before any cut at the end of the text."""

    draft: Draft
    path: list[int]
    tokens: list[int]
    hidden: Float[Tensor, "rows hidden"]
    logits: Float[Tensor, "heads vocab"]


Finish = Literal["eos", "length", "context"]


@dataclass(frozen=True)
class Step:
    """One target forward. The first step of a turn is the prefill (one token, nothing drafted).

    ``tokens`` is what the step added to the answer, already cut at the first EOS and at the length limit;
    ``rows`` the rows of the forward, ``drafted`` the tree nodes below the root, ``path`` the accepted rows of the
    draft, root first and before any cut; ``finish`` is set on the last step.
    """

    tokens: tuple[int, ...]
    rows: int
    drafted: int
    path: tuple[int, ...] = (0,)
    finish: Finish | None = None

    @property
    def accepted(self) -> int:
        """The depth reached."""
        return len(self.path) - 1


Networks = list[tuple[Any, str | int]]
"""Callables by where they are kept: an object and an attribute's name, or a list and an index."""


class Drafter(Protocol):
    """A method. State lives between ``begin`` calls only; ``begin`` forgets everything of the prompt before.

    Its class is made as ``Class(config, target, tokenizer)``. ``Class.Config`` is a frozen dataclass of settings that
    have defaults, and raises ``methods.common.errors.ArgumentError`` for one that is out of range.

    Four more things a class may have:

    * ``check(config, outline)``, a static method: refuses weights that don't fit a target of which the config alone is
      known, as an ``Outline`` (``hidden``, ``vocab``, ``config``). Called by ``methods.check`` before weights load.
    * ``networks()``: the callables that are forwards of its draft, as ``Networks``. Who measures replaces them by
      wrappers. The first argument has a row for each token; an attribute called ``logits`` is an output head, which
      belongs to the forward before it.
    * ``path_only = True``: of an outcome it reads the accepted rows alone and no logits, so that its cycles can be
      replayed from a known text (``methods.decode.replay``).
    * a setting called ``weights``: None, a folder, a hub id or a mapping, read by ``methods.loading.sources``.
    """

    max_rows: int
    """Rows of the largest forward it will ask for, root included: sizes the target's cache."""

    rejection: bool
    """At T>0 its tokens come from a rejection rule (lossless in law), not from the target's keyed draws (equal)."""

    def begin(self, request: Request, prefill: Prefill) -> None:
        """Start a turn: called once, after the target has read the prompt and before the first ``propose``.

        Not called where the first token already ends the text.

        Args:
            request: the prompt, the limits and how to sample.
            prefill: the target's hidden states, ``[prompt, hidden]`` in the target's dtype, and the first token of the
                answer. That token is the root of the first cycle and is not in the target's cache yet.
        """

    def propose(self, context: Context) -> Draft:
        """Draft one cycle: called once before each forward of the target but the prefill.

        Args:
            context: all committed tokens, the last of which is the root, and how many may still be emitted
                (``remaining``, at least 1). One of those is the target's own, so more than ``remaining - 1`` levels
                are never accepted.

        Returns:
            A tree whose first token is the root ``context.ids[-1]``, with at most ``max_rows`` rows on the device of
            the target's head. Its other fields may be None: then the draft is a plain tree, verified by matching.
        """

    def observe(self, outcome: Outcome) -> None:
        """Learn what became of the draft: called once after each ``propose``, but where the text ends there.

        Args:
            outcome: the accepted rows (``path``, root first), the committed tokens (one more than were accepted,
                before any cut at the end of the text), and of the target's forward the hidden states
                ``[rows, hidden]`` and the logits of the leading rows ``[heads, vocab]``.
        """
