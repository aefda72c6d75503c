"""The published static trees, counted; and trees that a user writes out."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from methods.common.errors import ConfigError
from methods.decode.tree import from_list, parents_of_paths
from methods.heads.static_trees import TREES, paths

MEDUSA = [name for name in TREES if name != "eagle_25"]


def leaves(nodes: tuple[tuple[int, ...], ...]) -> set[tuple[int, ...]]:
    return set(nodes) - {node[:-1] for node in nodes}


def depths(nodes: tuple[tuple[int, ...], ...]) -> list[int]:
    return [count for _, count in sorted(Counter(map(len, nodes)).items())]


def test_item_5_the_tree_of_eagle_has_25_nodes_in_5_levels_and_15_leaves() -> None:
    nodes = paths("eagle_25")
    assert len(nodes) == 25
    assert depths(nodes) == [4, 8, 8, 3, 2]
    assert len(leaves(nodes)) == 15
    assert max(map(len, nodes)) + 1 == 6  # tokens on the longest path, root included
    assert nodes[:6] == ((0,), (1,), (2,), (3,), (0, 0), (0, 1))
    listed = "0.0.0 0.0.1 0.0.2 0.1.0 0.1.1 0.2.0 0.2.1 1.0.0 0.0.0.0 0.0.0.1 0.0.0.2 0.0.0.0.0 0.0.0.0.1"
    assert [".".join(map(str, node)) for node in nodes[12:]] == listed.split()


@pytest.mark.parametrize("name", MEDUSA)
def test_every_tree_of_medusa_has_63_nodes_and_needs_at_most_four_heads(name: str) -> None:
    nodes = paths(name)
    assert len(nodes) == 63
    assert max(map(len, nodes)) <= 4
    assert max(rank for node in nodes for rank in node) == 9  # the references rank ten tokens a head


def test_the_tree_that_spec_bench_runs_has_the_published_shape() -> None:
    nodes = paths("mc_sim_7b_63")
    assert depths(nodes) == [10, 28, 23, 2]
    assert len(leaves(nodes)) == 42
    assert {(9, 0), (1, 6), (0, 0, 9), (2, 0, 0), (0, 0, 0, 1)} <= set(nodes)
    assert not {(9, 1), (1, 7), (0, 0, 10), (2, 0, 1), (0, 0, 0, 2)} & set(nodes)


def test_no_two_published_trees_are_the_same() -> None:
    assert len({paths(name) for name in TREES}) == len(TREES) == 9


@pytest.mark.parametrize("name", TREES)
def test_a_published_tree_is_in_level_order_and_without_gaps(name: str) -> None:
    nodes = paths(name)
    assert list(nodes) == sorted(nodes, key=lambda node: (len(node), node))
    assert all(node[-1] == 0 or (*node[:-1], node[-1] - 1) in nodes for node in nodes)
    tree = from_list(parents_of_paths(nodes), torch.device("cpu"))
    assert tree.depths.tolist() == [0, *map(len, nodes)]
    for node, parent in zip(nodes, tree.parents.tolist()[1:], strict=True):
        assert (((), *nodes))[parent] == node[:-1]


def test_a_tree_may_be_written_out_in_any_order() -> None:
    assert paths("2 | 0/1:1 1:1 0:2") == ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0))
    assert paths("3 |") == ((0,), (1,), (2,))


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ("mc_sim_7b_64", "not known; choose eagle_25, mc_sim_7b_63"),
        ("", "not known"),
        ("4", "not known"),
        ("-4 | 0:1", "not known"),
        ("four | 0:1", "not known"),
        ("| 0:1", "not known"),
        ("2 | 2:1", "'2:1' gives children to a node that does not exist"),
        ("2 | 0/0:1", "'0/0:1' gives children to a node that does not exist"),
        ("2 | 0:2 0/2:1", "'0/2:1' gives children to a node that does not exist"),
        ("2 | 0", "'0' is not of the form 0/1:2"),
        ("2 | 0:", "not of the form"),
        ("2 | 0:x", "not of the form"),
        ("2 | 0.1:1", "not of the form"),
        ("2 | 0//1:1", "not of the form"),
        ("2 | 0:1 |", "not of the form"),
        ("2 | 0:-1", "'0:-1'"),
        ("0 |", "'0 |'"),
    ],
)
def test_a_tree_that_cannot_be_read_is_refused_in_one_line(tree: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        paths(tree)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
