"""Three acceptance rules. Each takes a draft and the target's logits and returns the accepted rows and one more token.

* ``match``    deterministic drafts, and every draft at T=0. The target's own token is drawn at each node, and the walk
               goes down while a child holds it. Lossless because the emitted tokens *are* the target's draws; the tree
               only decides how far one forward reaches. For that, the mismatching draw itself is emitted, there is one
               draw per node and not per path, and nothing is drawn a second time after a mismatch.
* ``chain``    one stochastic chain: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
* ``siblings`` stochastic siblings drawn without replacement: the rule of EAGLE (arXiv 2401.15077) at T>0.

Every rule ends in one transfer to the host, whatever the tree.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from methods.base import Context, Draft
from methods.decode.sampling import distribution, draw, target_tokens, without

_NO_MASS = 1e-12
"""A residual this small means p and q agree and the coin was lost to rounding: the token is accepted."""


def accept(draft: Draft, logits: Float[Tensor, "heads vocab"], context: Context) -> tuple[list[int], list[int]]:
    """Apply the draft's rule.

    Returns the accepted rows, root first, and the token that follows each: the accepted drafts, and last the bonus
    token.
    """
    nodes = logits[: draft.tree.size]
    if draft.rule == "match" or context.sampling.greedy:
        return _match(draft, nodes, context)
    # The token after a node of depth d takes absolute position root + 1 + d.
    positions = draft.tree.depths + (context.root_position + 1)
    if draft.rule == "chain":
        return _chain(draft, nodes, context, positions)
    return _siblings(draft, nodes, context, positions)


def _match(draft: Draft, logits: Float[Tensor, "nodes vocab"], context: Context) -> tuple[list[int], list[int]]:
    tree, first = draft.tree, context.root_position + 1
    reached = range(first, first + tree.height + 1)
    drawn = target_tokens(logits, context.sampling, context.draws, reached, tree.depths)
    if tree.size == 1:
        return [0], [int(drawn)]
    tokens, parents, emitted = torch.stack([draft.tokens[: tree.size], tree.parents, drawn]).tolist()
    path = [0]
    # Children come behind their parent, so one pass finds the lowest child that holds the token, and goes on below it.
    for node in range(1, tree.size):
        if parents[node] == path[-1] and tokens[node] == emitted[path[-1]]:
            path.append(node)
    return path, [emitted[node] for node in path]


def _chain(
    draft: Draft, logits: Float[Tensor, "nodes vocab"], context: Context, positions: Int[Tensor, "nodes"]
) -> tuple[list[int], list[int]]:
    p = distribution(logits, context.sampling)
    drafted = draft.tree.size - 1
    if draft.q is None:
        return [0], [int(draw(p[0], context.draws.uniform("residual", positions[0])))]
    q, tokens = draft.q, draft.tokens[1:, None]
    px, qx = p[:drafted].gather(1, tokens)[:, 0], q.gather(1, tokens)[:, 0]
    residual = (p[:drafted] - q).clamp(min=0.0)
    coin = context.draws.uniform("coin", positions[:drafted])
    ok = (coin * qx < px) | (residual.sum(1, dtype=torch.float64) <= _NO_MASS)
    accepted = ok.cumprod(0).sum()
    # After the last node nothing was drafted: q is zero there and the residual is p itself, the bonus draw.
    rest = torch.cat([residual, p[drafted:]])[accepted]
    token = draw(rest, context.draws.uniform("residual", positions)[accepted])
    count, last, *drafts = torch.cat([torch.stack([accepted, token]), draft.tokens[1:]]).tolist()
    return list(range(count + 1)), [*drafts[:count], last]


def _siblings(
    draft: Draft, logits: Float[Tensor, "nodes vocab"], context: Context, positions: Int[Tensor, "nodes"]
) -> tuple[list[int], list[int]]:
    """All internal nodes at once, rank by rank: node j's children are tried in the order they were drawn."""
    p = distribution(logits, context.sampling)
    chosen = torch.full((draft.tree.size,), -1, device=p.device)
    if draft.q is not None:
        nodes = torch.tensor(draft.q_nodes, device=p.device)
        kids = _children(draft.tree.parents, nodes)
        left, q = p[nodes], draft.q
        picked = torch.full_like(nodes, -1)
        for rank in range(kids.shape[1]):
            child = kids[:, rank]
            tried = (child >= 0) & (picked < 0)
            token = draft.tokens[child.clamp(min=0)]
            px, qx = left.gather(1, token[:, None])[:, 0], q.gather(1, token[:, None])[:, 0]
            residual = (left - q).clamp(min=0.0)
            mass = residual.sum(1, dtype=torch.float64)
            coin = context.draws.uniform("coin", positions[nodes], lane=rank)
            tried &= qx > 0
            ok = tried & ((coin * qx < px) | (mass <= _NO_MASS))
            picked = torch.where(ok, child, picked)
            failed = (tried & ~ok)[:, None]
            left = torch.where(failed, residual / mass.clamp(min=_NO_MASS)[:, None].float(), left)
            q = torch.where(failed, without(q, token), q)
        chosen[nodes] = picked
        p = p.index_copy(0, nodes, left)
    emitted = draw(p, context.draws.uniform("residual", positions))
    tokens, below, last = torch.stack([draft.tokens, chosen, emitted]).tolist()
    path = [0]
    while (child := below[path[-1]]) >= 0:
        path.append(child)
    return path, [*(tokens[node] for node in path[1:]), last[path[-1]]]


def _children(parents: Int[Tensor, "nodes"], of: Int[Tensor, "inner"]) -> Int[Tensor, "inner width"]:
    """Children of the given nodes in index order, padded with -1."""
    is_child = parents[None, :] == of[:, None]
    width = int(is_child.sum(1).max())
    index = torch.where(is_child, torch.arange(parents.shape[0], device=parents.device), parents.shape[0])
    kids = index.sort(1).values[:, :width]
    return torch.where(kids < parents.shape[0], kids, -1)
