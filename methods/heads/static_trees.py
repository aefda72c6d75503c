"""The published static trees, each by how many children every inner node has.

A node is named by the ranks on its path (``0/1``: second child of the root's first child); children take ranks 0, 1,
... So "10 | 0:10 1:7" reads: the root has ten children, the first of them ten, the second seven. Nodes are ordered by
(depth, path), as in the reference code.

Sources: FasterDecoding/Medusa at e2a5d20, medusa/model/medusa_choices.py (63 nodes each; Spec-Bench and Hydra use
mc_sim_7b_63); SafeAILab/EAGLE at cb7e084, eagle/model/choices.py (25 nodes, confusingly of the same name there).
"""

from __future__ import annotations

from functools import lru_cache

from methods.common.errors import ArgumentError
from methods.common.limits import MOST_ROWS

_STAGE1 = "0/0:9 0/1:3 0/2:2 0/3:1 0/4:1 0/5:1 1/0:2 2/0:1 0/0/0:1"

TREES = {
    "eagle_25": "4 | 0:3 1:2 2:2 3:1 0/0:3 0/1:2 0/2:2 1/0:1 0/0/0:3 0/0/0/0:2",
    "mc_sim_7b_63": (
        "10 | 0:10 1:7 2:3 3:2 4:1 5:1 6:1 7:1 8:1 9:1 "
        "0/0:10 0/1:3 0/2:2 0/3:1 0/4:1 0/5:1 0/6:1 0/7:1 1/0:2 2/0:1 0/0/0:2"
    ),
    "vicuna_7b_stage1": f"10 | 0:10 1:7 2:4 3:3 4:2 5:2 6:1 7:1 8:1 9:1 {_STAGE1}",
    "vicuna_7b_stage2": (
        "10 | 0:10 1:5 2:2 3:2 4:1 5:1 6:1 7:1 "
        "0/0:9 0/1:4 0/2:2 0/3:1 0/4:1 0/5:1 1/0:3 1/1:1 2/0:1 0/0/0:4 0/0/1:1 0/0/2:1 0/1/0:1"
    ),
    "vicuna_13b_stage1": (
        "10 | 0:10 1:7 2:4 3:2 4:2 5:1 6:1 7:1 8:1 0/0:10 0/1:4 0/2:2 0/3:1 0/4:1 0/5:1 1/0:2 1/1:1 2/0:1 0/0/0:1"
    ),
    "vicuna_13b_stage2": (
        "10 | 0:10 1:4 2:2 3:1 4:1 5:1 0/0:10 0/1:4 0/2:2 0/3:1 0/4:1 0/5:1 1/0:3 1/1:1 2/0:1 3/0:1 "
        "0/0/0:4 0/0/1:2 0/0/2:1 0/1/0:1 1/0/0:1"
    ),
    "vicuna_33b_stage1": ("10 | 0:10 1:8 2:5 3:3 4:2 5:2 6:1 7:1 8:1 9:1 0/0:9 0/1:3 0/2:2 0/3:1 0/4:1 1/0:2 2/0:1"),
    "vicuna_33b_stage2": (
        "10 | 0:10 1:5 2:3 3:2 4:1 5:1 6:1 7:1 "
        "0/0:10 0/1:4 0/2:2 0/3:1 0/4:1 0/5:1 1/0:3 1/1:1 2/0:1 0/0/0:3 0/0/1:1 0/1/0:1"
    ),
    "zephyr_stage2": (
        "10 | 0:10 1:6 2:4 3:2 4:2 5:1 6:1 7:1 0/0:10 0/1:4 0/2:2 0/3:1 0/4:1 0/5:1 1/0:2 1/1:1 2/0:1 0/0/0:2 0/0/1:1"
    ),
}


def fitted(tree: str, *, widest: int) -> tuple[tuple[int, ...], ...]:
    """``paths`` for a drafter whose nodes have at most ``widest`` children.

    Raises:
        ArgumentError: as ``paths``, or if a node has more.
    """
    found = paths(tree)
    most = max(path[-1] for path in found) + 1
    if most > widest:
        raise ArgumentError(f"tree={tree!r} gives a node {most} children; at most {widest} are possible here")
    return found


@lru_cache(maxsize=32)
def paths(tree: str) -> tuple[tuple[int, ...], ...]:
    """The rank paths of a named tree, or of one written out in the notation above, sorted by (depth, path).

    Raises:
        ArgumentError: if it is neither, or names children of a node that does not exist.
    """
    text = TREES.get(tree, tree)
    root, bar, rest = text.partition("|")
    if not bar or not root.strip().isdigit() or int(root) < 1:
        raise ArgumentError(f"tree={tree!r} is not known; choose {', '.join(TREES)}, or write one out as '3 | 0:2 1:1'")
    counts = [root.strip(), *(entry.rpartition(":")[2] for entry in rest.split())]
    if any(len(count) > 9 for count in counts) or sum(int(count) for count in counts if count.isdigit()) > MOST_ROWS:
        raise ArgumentError(f"tree={tree[:40]!r} has more than {MOST_ROWS} nodes; give a smaller one")
    nodes: set[tuple[int, ...]] = {(rank,) for rank in range(int(root))}
    for entry in sorted(rest.split(), key=lambda entry: entry.count("/")):
        name, _, count = entry.partition(":")
        ranks = name.split("/")
        if not count.isdigit() or not all(rank.isdigit() for rank in ranks):
            raise ArgumentError(f"tree: entry {entry!r} is not of the form 0/1:2")
        parent = tuple(int(rank) for rank in ranks)
        if parent not in nodes:
            raise ArgumentError(f"tree: entry {entry!r} gives children to a node that does not exist")
        nodes |= {(*parent, rank) for rank in range(int(count))}
    return tuple(sorted(nodes, key=lambda path: (len(path), path)))
