"""The layers of the Llama family (Llama, Qwen2, Mistral), driven by few large operations: ``runtime="fused"``.

The weights are the stock module's in another layout: one product makes q, k and v, one makes gate and up, and both are
packed once into the blocks that the CPU's matrix kernels read (oneDNN, where the CPU has it). Between the products
stands only what a forward of few rows needs: batch 1, rows in the order given, one mask for all layers.

Query heads are stored as (share, kv_heads). Those that share a key/value head then lie in memory as further query rows
of that head, so grouped-query attention copies neither keys and values nor queries. The columns of ``o_proj`` follow
the same order.

RoPE tables come from the model's own module, so every scaling that transformers knows is computed by transformers.
Fusing SiLU, the product of gate and up, or the residual into oneDNN's kernels gave nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache as memoized
from functools import partial
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from methods.common.errors import ArgumentError
from methods.runtime.cache import GRAIN, KVCache

FAMILIES = ("Llama", "Qwen2", "Mistral")
_SHAPES = 64
"""Masks kept at most. No method has more shapes except lookahead, whose trie has any size."""

Product = Callable[[Tensor], Tensor]
"""``x -> x W^T + b`` for ``x`` [rows, in]."""


class Rows(Protocol):
    """What a layer asks of a cache: write these rows, and give all keys and values that are to be seen."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, /) -> tuple[Tensor, Tensor]: ...


class Fused:
    """A stack of layers with its cache kept by the caller: hidden states [rows, hidden] in, [rows, hidden] out.

    Args:
        layers: stock decoder layers; an input norm may be ``nn.Identity`` (EAGLE's).
        rotary: the stock module that makes the RoPE tables.
        norm: the final norm, if the stack has one.
        pack: use prepacked weights where the CPU has them.
    """

    def __init__(self, layers: Sequence[Any], rotary: nn.Module, norm: Any = None, *, pack: bool = True) -> None:
        linear = partial(make_linear, pack=pack)
        with torch.no_grad():
            self._layers = [_Layer(layer, index, linear) for index, layer in enumerate(layers)]
        self._rotary, self._norm = rotary, _norm(norm)
        self.share = self._layers[0].share
        self._mask = _Mask(self.share)

    def __call__(
        self,
        x: Float[Tensor, "rows hidden"],
        positions: Int[Tensor, "rows"],
        tail: Bool[Tensor, "rows newest"] | None,
        cache: KVCache,
    ) -> Float[Tensor, "rows hidden"]:
        """Write the rows into the cache behind ``cache.length`` and return their states; the caller moves the length.

        Row i sees every key but those that ``tail[i]`` hides among the newest. Without ``tail`` the rows are a single
        one, or a whole text from its start, read causally. A ``tail`` must not be written to once it was passed.
        """
        mask = None if tail is None else self._mask(tail, cache.length + x.shape[0], x.dtype)
        return self.run(x, self.rotation(x, positions), mask, cache)

    def rotation(self, x: Tensor, positions: Int[Tensor, "rows"]) -> tuple[Tensor, Tensor]:
        """Cosines and sines of these positions, each ``[rows, 1, head_dim]``."""
        cos, sin = self._rotary(x, positions[None])
        half = sin.shape[-1] // 2
        # rotate_half(x) * sin == swapped halves * sin with its first half negated: no negation in each layer.
        return cos[0, :, None], torch.cat([-sin[..., :half], sin[..., half:]], -1)[0, :, None]

    def run(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None, cache: Rows) -> Tensor:
        """The layers and the norm. ``mask`` [rows * share, keys] is added to the scores."""
        for layer in self._layers:
            x = layer(x, rotation, mask, cache)
        return self._norm(x) if self._norm else x


class _Layer:
    def __init__(self, layer: Any, index: int, linear: Callable[..., Product]) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._index, self._dim, self._scale = index, int(attention.head_dim), float(attention.scaling)
        self._groups = attention.k_proj.out_features // self._dim
        self._heads = attention.q_proj.out_features // self._dim
        self.share = self._heads // self._groups
        split = (self._groups, self.share, self._dim)

        def regrouped(values: Tensor) -> Tensor:
            return values.view(*split, *values.shape[1:]).transpose(0, 1).flatten(0, 2)

        q, k, v, out = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
        bias = None if q.bias is None else torch.cat([regrouped(q.bias), k.bias, v.bias])
        self._qkv = linear(torch.cat([regrouped(q.weight), k.weight, v.weight]), bias)
        self._out = linear(out.weight.view(-1, *split).transpose(1, 2).flatten(1), out.bias)
        bias = None if mlp.gate_proj.bias is None else torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias])
        self._gate_up = linear(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]), bias)
        self._down = linear(mlp.down_proj.weight, mlp.down_proj.bias)
        self._activate = mlp.act_fn
        self._before, self._between = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)

    def __call__(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None, cache: Rows) -> Tensor:
        rows, heads, groups, dim = x.shape[0], self._heads, self._groups, self._dim
        cos, sin = rotation
        made = self._qkv(self._before(x) if self._before else x).view(rows, heads + 2 * groups, dim)
        turned = made[:, : heads + groups]
        turned = torch.addcmul(turned * cos, turned.roll(dim // 2, -1), sin)
        keys, values = cache.update(
            turned[:, heads:].transpose(0, 1)[None], made[:, heads + groups :].transpose(0, 1)[None], self._index
        )
        x = x + self._out(self._attend(turned[:, :heads], keys, values, mask))
        gate, up = self._gate_up(self._between(x) if self._between else x).chunk(2, 1)
        return x + self._down(self._activate(gate).mul_(up))

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        rows, attend = query.shape[0], functional.scaled_dot_product_attention
        if mask is None and rows > 1:
            # A whole text: the query heads of a group stand for a batch, and keys and values are expanded, not copied.
            laid = query.reshape(rows, self.share, self._groups, self._dim).permute(1, 2, 0, 3)
            keys, values = (seen.expand(self.share, -1, -1, -1) for seen in (keys, values))
            return attend(laid, keys, values, is_causal=True, scale=self._scale).permute(2, 0, 1, 3).flatten(1)
        laid = query.reshape(rows * self.share, self._groups, self._dim).transpose(0, 1)[None]
        return attend(laid, keys, values, attn_mask=mask, scale=self._scale).transpose(1, 2).reshape(rows, -1)


class _Mask:
    """The mask added to the scores: 0 over the text, and minus infinity over the draft rows that a row may not see.

    The right end of a buffer is the mask of any text that fits, so the mask is written once per tree and not once per
    cycle. Where the tree changes, only its corner is written. A head drafts level by level, so each shape has a buffer.
    """

    def __init__(self, share: int) -> None:
        self._share = share
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = {}

    def __call__(self, tail: Tensor, length: int, dtype: torch.dtype) -> Tensor:
        shape = (tail.shape[0], tail.shape[1])
        buffer, written = self._kept.get(shape, (None, None))
        if buffer is None or length > buffer.shape[1]:
            if len(self._kept) >= _SHAPES:
                self._kept.clear()
            room = -(-length // GRAIN) * GRAIN
            buffer, written = torch.zeros(shape[0] * self._share, room, dtype=dtype, device=tail.device), None
        if tail is not written:
            hidden = torch.zeros_like(tail, dtype=dtype).masked_fill_(~tail, -torch.inf)
            buffer[:, buffer.shape[1] - shape[1] :] = hidden.repeat_interleave(self._share, 0)
            self._kept[shape] = buffer, tail
        seen = buffer[:, buffer.shape[1] - length :]
        if seen.is_cuda:  # its kernels need rows aligned to 16 bytes, which a view from the right is not
            return seen.new_empty(seen.shape[0], -(-length // 8) * 8)[:, :length].copy_(seen)
        return seen


def make_linear(weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> Product:
    """A product with fixed weights [out, in]: prepacked where this CPU has it, else plain."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    if not pack or weight.device.type != "cpu" or not can_pack(weight.dtype):
        return partial(functional.linear, weight=weight, bias=bias)
    return _packed(weight, bias)


@memoized
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build and this CPU multiply prepacked weights of this dtype.

    The operators are those that inductor emits for frozen weights. They are private to torch, so they are tried and not
    assumed: where one is missing, or does not give the plain product, the plain product is used.
    """
    try:
        native = {
            torch.float32: True,
            torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
            torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported(),
        }
        if not native.get(dtype):
            return False
        weight = torch.linspace(-1, 1, 48 * 32).sin().view(48, 32).to(dtype)
        rows = torch.linspace(1, 2, 5 * 32).cos().view(5, 32).to(dtype)
        with torch.inference_mode():
            ours, plain = _packed(weight, weight[:, 0])(rows), functional.linear(rows, weight, weight[:, 0])
        return ours.shape == plain.shape and torch.allclose(ours, plain, rtol=2e-2, atol=2e-2)
    except (AttributeError, RuntimeError, TypeError):
        return False


def _packed(weight: Tensor, bias: Tensor | None) -> Product:
    # Without a number of rows to expect, the blocks suit one row as well as sixty (a hint of 1 costs 16 rows 10 %).
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    bias = None if bias is None else bias.contiguous()  # the operator silently misreads a strided one
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def product(x: Tensor) -> Tensor:
        result: Tensor = multiply(x, packed, bias, "none", [], "")
        return result

    return product


def _norm(module: Any) -> Product | None:
    """RMSNorm as the stock module computes it: in float32, even for float64."""
    if module is None or isinstance(module, nn.Identity):
        return None
    weight, epsilon, size = module.weight.detach(), float(module.variance_epsilon), tuple(module.weight.shape)
    if weight.dtype == torch.float64:
        return lambda x: functional.rms_norm(x.float(), size, None, epsilon).to(x.dtype) * weight
    return lambda x: functional.rms_norm(x, size, weight, epsilon)


def check_architecture(base: Any, runtime: str) -> None:
    """Refuse a base model that this file does not know how to drive.

    Raises:
        ArgumentError: for another architecture, projections that are not plain weights, or several devices.
    """
    family = type(base).__name__.removesuffix("Model")
    if family not in FAMILIES:
        raise ArgumentError(f"runtime={runtime} drives {', '.join(FAMILIES)}, not {type(base).__name__}; use hf")
    for name, module in base.layers.named_modules():
        if name.endswith("_proj") and type(module) is not nn.Linear:
            raise ArgumentError(
                f"runtime={runtime} needs plain weights, but layer {name} is a {type(module).__name__}; use hf"
            )
    if len({weight.device for weight in base.parameters()}) > 1:
        raise ArgumentError(f"runtime={runtime} needs the whole model on one device; use hf or one device")
