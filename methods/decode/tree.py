"""Draft trees as parent pointers: depths, ancestor masks and positions all follow from them.

A tree is stored root first, every parent before its children (topological order). One index gather per level then
replaces the padded path tables of other implementations, and a "phantom" token on a padded path cannot exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """``parents[0] == -1`` and ``parents[i] < i``. ``mask[i, j]``: j is i or an ancestor of i. ``depths[0] == 0``.

    ``height`` bounds the depths and is known on the host, where reading them would wait for the device.
    """

    parents: Int[Tensor, "nodes"]
    depths: Int[Tensor, "nodes"]
    mask: Bool[Tensor, "nodes nodes"]
    height: int

    @property
    def size(self) -> int:
        return int(self.parents.shape[0])

    @classmethod
    def from_parents(cls, parents: Int[Tensor, "nodes"], height: int) -> Tree:
        """Build from parent pointers, without a host sync.

        ``height`` bounds the depths; the ancestor mask is the reflexive closure of the parent relation, reached by
        squaring it about log2(height) times.
        """
        size = parents.shape[0]
        reach = torch.eye(size, device=parents.device)
        reach[1:].scatter_(1, parents[1:, None], 1.0)
        for _ in range(max(height - 1, 0).bit_length()):
            reach = (reach @ reach).clamp_(max=1.0)
        mask = reach > 0
        return cls(parents, mask.sum(1) - 1, mask, height)


@lru_cache(maxsize=256)
def chain(length: int, device: torch.device) -> Tree:
    """The root and ``length`` nodes, each the child of the one before."""
    size = length + 1
    mask = torch.ones(size, size, dtype=torch.bool, device=device).tril_()
    depths = torch.arange(size, device=device)
    return Tree(depths - 1, depths, mask, length)


def from_list(parents: Sequence[int], device: torch.device) -> Tree:
    """Build from a host list of parent pointers.

    Raises:
        ValueError: if the list is not a rooted tree in topological order.
    """
    if not parents or parents[0] != -1 or any(not 0 <= p < i for i, p in enumerate(parents) if i):
        raise ValueError(f"parents must be [-1, p1, ...] with 0 <= p_i < i, got {list(parents)}")
    depths = [0] * len(parents)
    for node in range(1, len(parents)):
        depths[node] = depths[parents[node]] + 1
    return Tree.from_parents(torch.tensor(parents, device=device), max(depths))


def parents_of_paths(paths: Sequence[tuple[int, ...]]) -> list[int]:
    """Parent pointers (root prepended) of a tree given as rank paths, which must be sorted by (length, path).

    Raises:
        ValueError: if a path's prefix is missing or the ranks under a node are not 0..c-1. Gaps would break the
            without-replacement rule, and rank-conditioned heads.
    """
    index: dict[tuple[int, ...], int] = {(): 0}
    parents = [-1]
    for path in paths:
        prefix, rank = path[:-1], path[-1]
        if prefix not in index:
            raise ValueError(f"tree path {path} has no parent {prefix}")
        if rank and (*prefix, rank - 1) not in index:
            raise ValueError(f"tree path {path} leaves a gap: rank {rank - 1} is missing")
        index[path] = len(parents)
        parents.append(index[prefix])
    return parents


@dataclass(frozen=True)
class Level:
    """The inner nodes of one depth and their children: ``children[i]`` has rank ``rank[i]`` under ``inner[row[i]]``.

    ``nodes`` is ``inner`` on the device; ``above[i]`` is the place of inner node i's parent among the inner nodes of
    the level before; ``width`` is the largest number of children.
    """

    inner: list[int]
    nodes: Int[Tensor, "inner"]
    above: Int[Tensor, "inner"]
    children: Int[Tensor, "children"]
    row: Int[Tensor, "children"]
    rank: Int[Tensor, "children"]
    width: int


def inner_levels(parents: Sequence[int], device: torch.device) -> list[Level]:
    """The levels that a drafter expands one after the other, the root's first."""
    depths = [0] * len(parents)
    for node in range(1, len(parents)):
        depths[node] = depths[parents[node]] + 1
    levels: list[Level] = []
    for depth in range(1, max(depths) + 1):
        children = [node for node in range(1, len(parents)) if depths[node] == depth]
        inner = sorted({parents[node] for node in children})
        rows = [inner.index(parents[node]) for node in children]
        ranks = [rows[:i].count(row) for i, row in enumerate(rows)]
        above = [levels[-1].inner.index(parents[node]) for node in inner] if levels else [0]
        child, row, rank = torch.tensor([children, rows, ranks], device=device)
        nodes, place = torch.tensor([inner, above], device=device)
        levels.append(Level(inner, nodes, place, child, row, rank, max(ranks) + 1))
    return levels
