"""The target: a stock Hugging Face decoder-only model, our cache, and an explicit mask.

This is the only place that runs the target. The model's own code is neither copied nor patched: the base model is
called with explicit positions and a 4-D mask (taken as is by ``transformers``), and the output head is applied only
to the rows whose logits somebody reads.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from methods.base import ConfigError
from methods.cache import KVCache
from methods.sampling import check_finite


class Target:
    """A causal LM ready to be driven row by row.

    Args:
        model: any decoder-only ``transformers`` model whose logits are its output head applied to the base model's
            last hidden state. That is checked by a forward of three tokens, not assumed.
        context: tokens a text may hold, prompt included; default: what the model's config says.

    Raises:
        ConfigError: if the model post-processes its logits, or ``context`` exceeds what it was made for.
    """

    def __init__(self, model: Any, *, context: int | None = None) -> None:
        self.model = model.eval()
        config = self.model.config
        self._base = self.model.base_model
        self._head = self.model.get_output_embeddings()
        self._cache_argument = (
            "cache" if "cache" in inspect.signature(self._base.forward).parameters else "past_key_values"
        )
        self.vocab = int(self._head.weight.shape[0])
        self.hidden = int(config.hidden_size)
        self.context = _context(config, context)
        self.cache = KVCache(int(config.num_hidden_layers))
        # SDPA takes a boolean mask as it is; eager attention adds whatever it is given to the scores.
        self._adds_mask = config._attn_implementation == "eager"
        self._check_head()

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

        They are *post-norm*: what the output head reads, and what every draft head of this house was trained on.
        """
        self.cache.reset(capacity)
        hidden = self._run(ids[None], torch.arange(ids.shape[0], device=ids.device), None)[0]
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
        if tokens.shape[0] == 1:
            return self._run(tokens[None], positions, None)[0]  # no mask: keeps the fastest attention kernel
        seen = torch.cat([mask.new_ones(mask.shape[0], past), mask], 1)[None, None]
        return self._run(tokens[None], positions, self._additive(seen) if self._adds_mask else seen)[0]

    def begin_batch(self, capacity: int) -> None:
        """Forget everything and make room for many texts of ``capacity`` tokens each, all of one length at any time."""
        self.cache = KVCache(self.cache.layer_count)
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
        logits: Tensor = self._head(hidden.to(self.head_device))
        return logits

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
        ours = self.logits(self._run(ids[None], ids, None)[0]).float()
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


def _context(config: Any, asked: int | None) -> int:
    """The longest text this model takes. A sliding window shorter than that ends it: our mask shows every row the
    whole cache, which is only the model's own attention while the text fits in the window."""
    limit = int(config.max_position_embeddings)
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        limit = min(limit, int(window))
    if asked is not None and not 2 <= asked <= limit:
        raise ConfigError(f"model.context={asked} must lie in [2, {limit}] for this model")
    return asked or limit
