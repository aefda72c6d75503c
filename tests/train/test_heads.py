"""A head in training and the drafter that loads it compute the same numbers: what is trained is what drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from methods.base import Context, Prefill, Request, Sampling
from methods.decode.draws import Draws
from methods.decode.target import Target
from methods.heads.checkpoints import Checkpoint
from methods.heads.draft_vocab import FILE, DraftHead
from methods.heads.eagle_head import EagleHead
from methods.heads.shared_draft import shared_draft
from methods.hydra_heads import Hydra, HydraConfig
from methods.loading.model import Source
from methods.medusa import Medusa, MedusaConfig
from methods.train.data import Batch
from methods.train.eagle import EagleTraining
from methods.train.export import export
from methods.train.heads import Frozen
from methods.train.hydra import HydraTraining
from methods.train.medusa import MedusaTraining
from methods.train.sps import SpSTraining
from tests.support.models import tiny_llama

WINDOW = 12


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_llama(torch.float32, layers=2))


@pytest.fixture(scope="module")
def batch(target: Target) -> Batch:
    """Two true texts with the target's own states."""
    tokens = torch.randint(target.vocab, (2, WINDOW), generator=torch.Generator().manual_seed(3))
    target.begin_batch(WINDOW)
    return Batch(tokens, target.read_batch(tokens).clone(), torch.tensor([[0] * WINDOW, [1] * 7 + [2] * 5]))


@pytest.fixture
def frozen(target: Target) -> Frozen:
    return Frozen(target, torch.arange(target.vocab))


def shaken(head: Any) -> Any:
    """Weights away from their start, in bfloat16's values so that the exported file holds them exactly."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
            parameter.copy_(parameter.bfloat16().float())
    return head


def exported(head: Any, folder: Path, vocab: int) -> Path:
    return export(head, torch.arange(vocab).flip(0), {}, folder)


def test_eagle_features(target: Target, batch: Batch, frozen: Frozen, tmp_path: Path) -> None:
    head = shaken(EagleTraining(frozen, EagleTraining.Settings(intermediate_size=40)))
    drafter = EagleHead(str(exported(head, tmp_path / "eagle", target.vocab)), "eagle", target, draft_vocab=0, widest=4)
    tokens = batch.tokens[0].tolist()
    drafter.begin(Request(tuple(tokens[:-1]), 4, frozenset()), Prefill(batch.features[0, :-1], tokens[-1]), 8)
    expected = head(batch.features[:1, :-1], batch.tokens[:1, 1:])[0, -1]
    torch.testing.assert_close(drafter.catch_up()[0], expected, rtol=1e-4, atol=1e-4)


def test_heads_start_at_the_least_squares_fit(batch: Batch, frozen: Frozen, target: Target) -> None:
    head = EagleTraining(frozen, EagleTraining.Settings(noise=0.0))
    head.start([batch])
    where = batch.together(1)
    inputs = torch.cat([frozen.embed(batch.tokens[:, 1:]), batch.features[:, :-1]], -1)[where]
    wanted, predicted = batch.features[:, 1:][where], head(batch.features[:, :-1], batch.tokens[:, 1:])[where]
    inputs = torch.nn.functional.pad(inputs, (0, 1), value=1.0).double()
    best = torch.linalg.lstsq(inputs, wanted.double(), driver="gelsd").solution
    assert (predicted - wanted).norm() <= (inputs @ best - wanted).norm() + 0.02 * wanted.norm()
    deeper = HydraTraining(frozen, HydraTraining.Settings(heads=2))
    deeper.start([batch])
    for k in range(2):
        where = batch.together(k + 1)
        drafted = deeper.head(k, deeper.prefix(batch.features), batch.tokens)[where]
        # Fewer positions than inputs: the fit goes through them all, so each head's logits are the target's own.
        torch.testing.assert_close(drafted, frozen.logits(batch.features[:, k + 1 :][where]), rtol=0.05, atol=0.02)
    draft = SpSTraining(frozen, SpSTraining.Settings(layers=1, intermediate_size=40))
    draft.start([batch])
    torch.testing.assert_close(draft(batch.tokens), batch.features, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("method", ["eagle", "medusa", "hydra", "sps"])
def test_a_head_learns_one_batch_from_its_start(method: str, target: Target, batch: Batch, frozen: Frozen) -> None:
    """Much of each starts at zero: it must be a zero that gradients leave."""
    torch.manual_seed(1)
    head: Any = {
        "eagle": lambda: EagleTraining(frozen, EagleTraining.Settings()),
        "medusa": lambda: MedusaTraining(frozen, MedusaTraining.Settings()),
        "hydra": lambda: HydraTraining(frozen, HydraTraining.Settings()),
        "sps": lambda: SpSTraining(frozen, SpSTraining.Settings(layers=1)),
    }[method]()
    # Fitted to other texts with these states, so that there is something left to learn.
    head.start([Batch(batch.tokens.flip(0, 1), batch.features, batch.text)])
    before = {name: parameter.detach().clone() for name, parameter in head.named_parameters()}
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    losses = []
    for step in range(40):
        loss = head.loss(batch, torch.Generator().manual_seed(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0], (losses[0], losses[-1])
    still = [name for name, parameter in head.named_parameters() if torch.equal(parameter, before[name])]
    assert not still


def test_medusa_ranks(target: Target, batch: Batch, frozen: Frozen, tmp_path: Path) -> None:
    head = shaken(MedusaTraining(frozen, MedusaTraining.Settings(heads=3)))
    folder = exported(head, tmp_path / "medusa", target.vocab)
    drafter = Medusa(MedusaConfig(tree="5 | 0:5 0/0:5", weights=str(folder)), target)
    draft = first_draft(drafter, batch)
    logits = [frozen.logits(head(batch.features[0, -1:], k))[0] for k in range(3)]
    assert draft == [*logits[0].topk(5).indices, *logits[1].topk(5).indices, *logits[2].topk(5).indices]


def test_hydra_ranks(target: Target, batch: Batch, frozen: Frozen, tmp_path: Path) -> None:
    head = shaken(HydraTraining(frozen, HydraTraining.Settings(heads=2)))
    folder = exported(head, tmp_path / "hydra", target.vocab)
    drafter = Hydra(HydraConfig(tree="5 | 0:5", weights=str(folder)), target)
    draft = first_draft(drafter, batch)
    prefix = head.prefix(batch.features[:1])[:, -1:]
    path = torch.tensor([[0, 4, draft[0]]])  # the root 4 follows; the text before it is in the prefix alone
    first = head.head(0, prefix.expand(1, 2, -1), path[:, :2])[0, 0]
    second = head.head(1, prefix.expand(1, 3, -1), path)[0, 0]
    assert draft == [*first.topk(5).indices, *second.topk(5).indices]


def first_draft(drafter: Any, batch: Batch) -> list[int]:
    """The drafted tokens behind the text of the batch's first row and the root 4."""
    request = Request(tuple(batch.tokens[0].tolist()), 4, frozenset())
    drafter.begin(request, Prefill(batch.features[0], 4))
    context = Context([*request.prompt_ids, 4], 4, Sampling(), Draws(0, "0", 0, 64))
    return drafter.propose(context).tokens[1:].tolist()


def test_sps_states(target: Target, batch: Batch, frozen: Frozen, tmp_path: Path) -> None:
    head = shaken(SpSTraining(frozen, SpSTraining.Settings(layers=1, intermediate_size=40)))
    draft = shared_draft(Source("folder", str(exported(head, tmp_path / "sps", target.vocab))), target)
    assert draft is not None
    states = draft.prefill(batch.tokens[0], capacity=WINDOW)
    torch.testing.assert_close(states, head(batch.tokens[:1])[0], rtol=1e-4, atol=1e-4)
    assert draft.embedding.data_ptr() == target.embedding.data_ptr(), "the embedding is shared, not copied"


def test_a_head_learns_nothing_across_the_end_of_a_text(batch: Batch, frozen: Frozen, target: Target) -> None:
    """Changing the second text of a row changes no term that the first one is predicted by."""
    torch.manual_seed(0)
    generator = torch.Generator()
    text = torch.tensor([[0] * 6 + [1] * 6])
    for head in (
        MedusaTraining(frozen, MedusaTraining.Settings(heads=3)),
        HydraTraining(frozen, HydraTraining.Settings(heads=3)),
        EagleTraining(frozen, EagleTraining.Settings(noise=0.0)),
    ):
        alone = Batch(batch.tokens[:1, :6], batch.features[:1, :6], text[:, :6])
        other = Batch(batch.tokens[:1], batch.features[:1], torch.tensor([[0] * 6 + list(range(1, 7))]))
        # Texts of one token have nothing to predict, so only the first text counts.
        torch.testing.assert_close(head.loss(other, generator), head.loss(alone, generator))


def test_eagle_feeds_its_own_features_where_asked(batch: Batch, frozen: Frozen) -> None:
    """Depth 2 of the agreement is what a draft of depth 2 sees: the second feature comes from the first prediction."""
    head = shaken(EagleTraining(frozen, EagleTraining.Settings(noise=0.0, own_share=1.0)))
    torch.manual_seed(0)
    own = head(batch.features[:1, :-1], batch.tokens[:1, 1:])
    mixed = torch.cat([batch.features[:1, :1], own[:, :-1]], 1)
    predicted = head(mixed, batch.tokens[:1, 1:])
    wanted = batch.features[:1, 1:]
    regression = torch.nn.functional.smooth_l1_loss(predicted, wanted)
    matching = -(frozen.logits(wanted).softmax(-1) * frozen.logits(predicted).log_softmax(-1)).sum(-1).mean()
    one = Batch(batch.tokens[:1], batch.features[:1], batch.text[:1])
    torch.testing.assert_close(head.loss(one, torch.Generator()), regression + 0.1 * matching)


@pytest.mark.parametrize("size", [6, 20])
def test_a_draft_vocabulary_ranks_its_tokens_as_the_whole_head_does(
    target: Target, batch: Batch, frozen: Frozen, tmp_path: Path, size: int
) -> None:
    folder = exported(MedusaTraining(frozen, MedusaTraining.Settings(heads=1)), tmp_path / "medusa", target.vocab)
    checkpoint = Checkpoint(str(folder), "medusa", ("medusa_lm_head.pt",))
    draft = DraftHead(target, checkpoint, size, 4)
    hidden = batch.features[0]
    kept = torch.arange(target.vocab - size, target.vocab)  # the ranking above is from the last id down
    full = target.logits(hidden)
    torch.testing.assert_close(draft.logits(hidden), full[:, kept])
    assert draft.tokens(torch.arange(size)).tolist() == kept.tolist()
    spread = draft.spread(draft.logits(hidden))
    assert spread.shape == full.shape
    assert torch.isinf(spread[:, : target.vocab - size]).all()
    torch.testing.assert_close(spread[:, kept], full[:, kept])
    assert (folder / FILE).is_file()
