"""The target: a stock Hugging Face decoder-only model, our cache, and an explicit mask.

This is the only place that runs the target. On ``runtime="hf"`` the model's own code is neither copied nor patched: the
base model is called with explicit positions and a 4-D mask (taken as is by ``transformers``). On ``runtime="fused"``
the same weights are driven by ``methods.runtime.fused``, on ``"graph"`` in recorded shapes
(``methods.runtime.cuda_graphs``), and held against the stock module first. Either way the output head is applied only
to the rows whose logits somebody reads, and draft heads are built from the target's own blocks (``layers``,
``linear``): vanilla and every method of a block run on one runtime.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from methods.common.errors import ArgumentError, ConfigError
from methods.decode.sampling import check_finite
from methods.decode.tree import Tree
from methods.runtime.cache import KVCache
from methods.runtime.cuda_graphs import Graphed, refuse_without_gpu
from methods.runtime.fused import Fused, Product, check_architecture, make_linear
from methods.runtime.stock import Layers, Stock

RUNTIMES = ("hf", "fused", "graph")

_SPARE = 256
"""Cache rows kept for a draft behind the longest text. A larger draft costs one more allocation, and no other harm."""

_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""How far a fused state may lie from the stock module's, as a share of its norm. RMSNorm is float32 always."""


class Target:
    """A causal LM ready to be driven row by row.

    Args:
        model: any decoder-only ``transformers`` model whose logits are its output head applied to the base model's
            last hidden state. That is checked by a forward of three tokens, not assumed.
        context: tokens a text may hold, prompt included; default: what the model's config says.
        runtime: ``hf``, the stock module; for Llama, Qwen2 and Mistral also ``fused`` and, on a GPU, ``graph``.

    Raises:
        ConfigError: if the model post-processes its logits, ``context`` exceeds what it was made for, or the runtime
            does not know its architecture.
    """

    def __init__(self, model: Any, *, context: int | None = None, runtime: str = "hf") -> None:
        if runtime not in RUNTIMES:
            raise ArgumentError(f"runtime={runtime} is not known; choose {', '.join(RUNTIMES)}")
        if runtime == "graph":
            refuse_without_gpu(model.device)
        self.runtime = runtime
        self.model = model.eval()
        config = self.model.config
        self._base = self.model.base_model
        self._head = self.model.get_output_embeddings()
        self._cache_argument = (
            "cache" if "cache" in inspect.signature(self._base.forward).parameters else "past_key_values"
        )
        self.vocab = int(self._head.weight.shape[0])
        self.hidden = int(config.hidden_size)
        self.context = context_of(config, context)
        self._together = len({weight.device for weight in self._base.parameters()}) == 1
        self.cache = self.new_cache()
        # SDPA takes a boolean mask as it is; eager attention adds whatever it is given to the scores.
        self._adds_mask = config._attn_implementation == "eager"
        self._check_head()
        self._project: Product = self._head
        self._fused: Layers | None = None
        if runtime != "hf":
            check_architecture(self._base, runtime)
            self._fused = self.layers(list(self._base.layers), self._base.rotary_emb, self._base.norm)
            self._project = self.linear(self._head.weight, self._head.bias)
            self._check_fused()

    @property
    def config(self) -> Any:
        """The model's own config."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Where tokens go in; with ``device_map`` the layers may lie elsewhere too."""
        return self.embedding.device

    @property
    def head_device(self) -> torch.device:
        """Where hidden states come out, and where draft heads live."""
        return self.output_weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def embedding(self) -> Float[Tensor, "vocab hidden"]:
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def output_weight(self) -> Float[Tensor, "vocab hidden"]:
        """The matrix of the output head."""
        weight: Tensor = self._head.weight
        return weight

    @torch.inference_mode()
    def prefill(self, ids: Int[Tensor, "prompt"], *, capacity: int) -> Float[Tensor, "prompt hidden"]:
        """Forget the text before, read a prompt into the cache, and return its last hidden states.

        They are *post-norm*: what the output head reads, and what all draft heads here were trained on.
        """
        self.cache.reset(capacity)
        hidden = self._read(ids, torch.arange(ids.shape[0], device=ids.device), None)
        self.cache.length = ids.shape[0]
        return hidden

    @torch.inference_mode()
    def forward(
        self, tokens: Int[Tensor, "rows"], offsets: Int[Tensor, "rows"], mask: Bool[Tensor, "rows rows"]
    ) -> Float[Tensor, "rows hidden"]:
        """One forward of a draft's rows behind the cached text; ``keep`` then says which rows stay.

        Row i sees the whole cache and the rows of ``mask[i]``, at position ``cache.length + offsets[i]``. Positions
        past the context are clamped: such a row can only predict tokens that the length limit cuts off.
        """
        past = self.cache.length
        tokens, offsets, mask = tokens.to(self.device), offsets.to(self.device), mask.to(self.device)
        positions = (offsets + past).clamp_(max=self.context - 1)
        # One row needs no mask: fused and stock layers have a faster kernel without.
        return self._read(tokens, positions, None if tokens.shape[0] == 1 else mask)

    def begin_batch(self, capacity: int) -> None:
        """Forget everything and make room for many texts of ``capacity`` tokens each, all of one length at any time."""
        self.cache = self.new_cache()
        self.cache.reset(capacity)

    @torch.inference_mode()
    def read_batch(self, tokens: Int[Tensor, "texts rows"]) -> Float[Tensor, "texts rows hidden"]:
        """Append the same number of tokens to every text of a batch; their last hidden states (post-norm)."""
        past, rows = self.cache.length, tokens.shape[1]
        hidden = self._run(tokens.to(self.device), torch.arange(past, past + rows, device=self.device), None)
        self.cache.length += rows
        return hidden

    def logits(self, hidden: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n vocab"]:
        """The output head, in the model's dtype."""
        return self._project(hidden.to(self.head_device))

    def linear(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, "out"] | None = None) -> Product:
        """``x -> x W^T + b`` as this runtime multiplies: draft heads are built from it."""
        return make_linear(weight, bias, pack=self.runtime != "hf")

    def layers(self, layers: Sequence[Any], rotary: Any, norm: Any = None) -> Layers:
        """A stack of decoder layers as this runtime drives them: draft heads have some of their own."""
        drivers: dict[str, Callable[..., Layers]] = {"hf": Stock, "fused": Fused, "graph": Graphed}
        return drivers[self.runtime](layers, rotary, norm)

    def release(self) -> None:
        """Free the stock layers' weights where ``fused`` holds a copy in its own layout, so that one model's memory is
        used.

        The stock module keeps its embedding and its output head, and cannot run afterwards.
        """
        if self._fused:
            self._base.layers.to("meta")
            trim_heap()

    def new_cache(self, layers: int | None = None) -> KVCache:
        """A cache for as many layers as the target has, or for a draft's own.

        On ``graph`` it holds the longest text from the start: growing would move it, and the recorded graphs would be
        lost.
        """
        least = self.context + _SPARE if self.runtime == "graph" else 0
        return KVCache(layers or int(self.model.config.num_hidden_layers), together=self._together, least=least)

    def _read(self, tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Rows behind the cached text: [rows] in, [rows, hidden] out."""
        if self._fused:
            return self._fused(nn.functional.embedding(tokens, self.embedding), positions, mask, self.cache)
        if mask is not None:
            mask = torch.cat([mask.new_ones(mask.shape[0], self.cache.length), mask], 1)[None, None]
            mask = self._additive(mask) if self._adds_mask else mask
        return self._run(tokens[None], positions, mask)[0]

    def _additive(self, mask: Tensor) -> Tensor:
        """0 where a key is seen, the dtype's lowest number where not: minus infinity would make NaN of an empty row."""
        lowest = torch.finfo(self.dtype).min
        return torch.zeros(mask.shape, dtype=self.dtype, device=mask.device).masked_fill_(~mask, lowest)

    def _run(self, tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        hidden: Tensor = self._base(
            input_ids=tokens,
            position_ids=positions[None],
            attention_mask=mask,
            use_cache=True,
            **{self._cache_argument: self.cache},
        ).last_hidden_state
        return hidden

    @torch.inference_mode()
    def _check_head(self) -> None:
        ids = torch.arange(3, device=self.device) % self.vocab
        self.cache.reset(3)
        # Same shapes and kernels on both sides, so anything beyond rounding is a soft cap, a scale or a bias.
        ours = self._head(self._run(ids[None], ids, None)[0].to(self.head_device)).float()
        theirs = self.model(input_ids=ids[None], use_cache=False).logits[0].float()
        self.cache.reset(0)
        check_finite(theirs, "after the first tokens of this model: its weights hold NaN or infinity")
        if getattr(self.model.config, "final_logit_softcapping", None) or not torch.allclose(
            ours, theirs.to(ours.device), rtol=1e-2, atol=1e-2 * float(theirs.abs().max())
        ):
            raise ConfigError(
                f"{type(self.model).__name__} changes its logits after the output head; only models whose logits are "
                "head(last hidden state) are supported, such as Llama, Qwen2 and Mistral"
            )

    @torch.inference_mode()
    def _check_fused(self) -> None:
        """Compare the fused states with the stock module's, on a prompt and a small tree behind it; only rounding may
        differ.

        Every row is compared; in 16 bits the median row, since on a text without meaning single rows may stray in
        either.
        """
        tokens = torch.linspace(0, self.vocab - 1, 16, device=self.device).long()
        offsets = torch.tensor([0, 1, 1, 1, 2, 2, 3, 3], device=self.device)
        mask = Tree.from_parents(torch.tensor([-1, 0, 0, 0, 1, 3, 4, 4], device=self.device), 3).mask
        fused, states = self._fused, []
        for self._fused in (fused, None):
            read = self.prefill(tokens[:8], capacity=16), self.forward(tokens[8:], offsets, mask)
            states.append(torch.stack(read).double())
        self._fused = fused
        self.cache.reset(0)
        ours, theirs = states
        away = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
        short = self.dtype in (torch.float16, torch.bfloat16)
        difference, bound = float((away.median(-1).values if short else away).max()), _ROUNDING[self.dtype]
        if not difference <= bound:
            raise ArgumentError(
                f"runtime={self.runtime} gives other hidden states than {type(self.model).__name__} itself (by "
                f"{difference:.1e} of their norm, {bound:.0e} is rounding); use hf"
            )


def trim_heap() -> None:
    """Give freed memory back: glibc keeps what was freed in pieces below 32 MB until it is told."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def context_of(config: Any, asked: int | None) -> int:
    """The longest text this model takes. A sliding window shorter than that ends it: our mask shows every row the
    whole cache, which is only the model's own attention while the text fits in the window.

    Raises:
        ArgumentError: if ``asked`` is more.
    """
    limit = int(config.max_position_embeddings)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Beyond this the longest position of a forward chooses the frequencies of all its rows, a tree's among them.
        limit = min(limit, int(rope.get("original_max_position_embeddings") or limit))
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        limit = min(limit, int(window))
    if asked is not None and not 2 <= asked <= limit:
        raise ArgumentError(f"context={asked} must lie in [2, {limit}] for this model")
    return asked or limit
