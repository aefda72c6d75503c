"""Trees: depths, masks and parent pointers against walks up the parents, one node at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.decode.tree import Tree, chain, from_list, inner_levels, parents_of_paths
from tests.support.models import parent_lists

CPU = torch.device("cpu")


def ancestors(parents: list[int], node: int) -> list[int]:
    """The node itself, its parent, and so on up to the root."""
    line = [node]
    while parents[line[-1]] >= 0:
        line.append(parents[line[-1]])
    return line


def check(tree: Tree, parents: list[int]) -> None:
    size = len(parents)
    lines = [ancestors(parents, node) for node in range(size)]
    assert tree.size == size
    assert tree.parents.tolist() == parents
    assert tree.depths.tolist() == [len(line) - 1 for line in lines]
    assert tree.height >= max(tree.depths.tolist())
    assert tree.mask.tolist() == [[key in line for key in range(size)] for line in lines]


@given(parent_lists())
def test_a_node_sees_itself_and_its_ancestors_only(parents: list[int]) -> None:
    tree = from_list(parents, CPU)
    check(tree, parents)
    assert tree.height == max(tree.depths.tolist()), "a higher bound makes noise for positions that no node has"


@given(parent_lists(), st.integers(0, 9))
def test_height_may_be_any_upper_bound(parents: list[int], slack: int) -> None:
    height = max(len(ancestors(parents, node)) - 1 for node in range(len(parents)))
    check(Tree.from_parents(torch.tensor(parents), height + slack), parents)


@pytest.mark.parametrize("length", range(35))
def test_an_exact_height_closes_the_longest_line(length: int) -> None:
    # The mask doubles its reach per squaring: one squaring too few shows just past a power of two.
    check(Tree.from_parents(torch.arange(-1, length), length), list(range(-1, length)))


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_a_chain_is_the_tree_of_one_line(length: int) -> None:
    check(chain(length, CPU), list(range(-1, length)))


@pytest.mark.parametrize("parents", [[], [0], [-1, -1], [-1, 1], [-1, 0, 2], [-1, 2, 0], [-1, 0, -1]])
def test_lists_that_are_no_rooted_tree_in_order_are_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="parents must be"):
        from_list(parents, CPU)


def rank_paths(parents: list[int]) -> list[tuple[int, ...]]:
    """Each node but the root as the ranks that lead to it, in the order the function under test wants."""
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, len(parents)):
        rank = sum(parent == parents[node] for parent in parents[:node])
        paths.append((*paths[parents[node]], rank))
    return sorted(paths[1:], key=lambda path: (len(path), path))


@given(parent_lists())
def test_rank_paths_point_to_their_prefix(parents: list[int]) -> None:
    paths = rank_paths(parents)
    found = parents_of_paths(paths)
    nodes = [(), *paths]
    assert found[0] == -1
    assert [nodes[parent] for parent in found[1:]] == [path[:-1] for path in paths]
    from_list(found, CPU)


@given(parent_lists(min_size=2), st.data())
def test_a_missing_prefix_or_rank_is_refused(parents: list[int], data: st.DataObject) -> None:
    paths = rank_paths(parents)
    gone = data.draw(st.sampled_from(paths))
    below = [path for path in paths if path != gone and path[: len(gone)] == gone]
    later_siblings = [path for path in paths if path[:-1] == gone[:-1] and path[-1] > gone[-1]]
    rest = [path for path in paths if path != gone]
    if not below and not later_siblings:
        assert len(parents_of_paths(rest)) == len(paths)
        return
    with pytest.raises(ValueError, match=r"no parent|leaves a gap"):
        parents_of_paths(rest)


@given(parent_lists(max_size=14))
def test_levels_hold_every_edge_once_with_its_rank_and_its_place_above(parents: list[int]) -> None:
    depths = [len(ancestors(parents, node)) - 1 for node in range(len(parents))]
    levels = inner_levels(parents, CPU)
    assert len(levels) == max(depths)
    for depth, level in enumerate(levels):
        children = [node for node in range(len(parents)) if depths[node] == depth + 1]
        assert level.inner == sorted({parents[node] for node in children}) == level.nodes.tolist()
        assert level.children.tolist() == children
        assert [level.inner[row] for row in level.row.tolist()] == [parents[node] for node in children]
        ranks = [sum(parents[older] == parents[node] for older in range(node)) for node in children]
        assert level.rank.tolist() == ranks
        assert level.width == max(ranks) + 1
        above = [levels[depth - 1].inner[place] for place in level.above.tolist()] if depth else [-1]
        assert above == [parents[node] for node in level.inner]


def test_every_tensor_of_a_tree_is_made_where_it_was_asked_for() -> None:
    parents = [-1, 0, 0, 1, 3]
    with torch.device("meta"):  # whatever names no device is made there, and holds nothing
        check(from_list(parents, CPU), parents)
        check(chain(11, CPU), list(range(-1, 11)))
        assert [level.children.tolist() for level in inner_levels(parents, CPU)] == [[1, 2], [3], [4]]
