"""NativeModel: the decoder of the native architecture for serving, over a mixed batch of prefill chunks and decodes.

Built from a configuration and named tensors; computes hidden states and logits. Knows no requests, plans or files.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hybrid.pools.specs import ModelSpec

from .context import AttentionCache, BlockTables, ForwardContext, StateCache
from .layers.attention import Attention
from .layers.linear import Linear
from .layers.mamba2 import Mamba2, Mamba2Sizes
from .layers.mlp import SwiGLU
from .layers.norm import RMSNorm
from .layers.rotary import Rotary
from .native_config import NativeConfig
from .native_specs import layer_specs
from .ops.dispatch import AttentionRun, MambaRun, select_ops


@dataclass(frozen=True, slots=True)
class NativeDecoderLayer:
    """Pre-norm residual layer: mixer, then the MLP where there is one."""

    input_norm: RMSNorm
    mixer: Attention | Mamba2
    sliding_window: int | None  # of an attention mixer
    post_norm: RMSNorm | None
    mlp: SwiGLU | None


class NativeModel:
    """The decoder. `spec` says what it keeps; `forward` reads and writes the caches that its context brings.

    `tensors` are named as in the checkpoint, [out, in]; only the decoder's are read. `dtype` is the dtype of weights,
    keys and values; scans, norms and logits are float32.
    """

    def __init__(
        self, config: NativeConfig, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.spec: ModelSpec = layer_specs(config, str(dtype).removeprefix("torch."))
        self._ops = select_ops(device)

        def get(name: str, as_dtype: torch.dtype = dtype) -> torch.Tensor:
            return tensors[name].to(device=device, dtype=as_dtype)

        def norm(name: str) -> RMSNorm:
            return RMSNorm(get(name, torch.float32), config.rms_norm_eps)

        self._embedding = get("embed_tokens.weight")
        self._norm = norm("norm.weight")
        self._head = Linear((self._embedding if config.tie_word_embeddings else get("lm_head.weight"),))
        self._rotary = Rotary(config.head_dim, config.max_position_embeddings, config.rope_theta, device)
        sizes = Mamba2Sizes(
            config.mamba_num_heads, config.mamba_head_dim, config.mamba_state_size, config.mamba_n_groups
        )
        layers = []
        for index, layer in enumerate(config.layers):
            at, mixer_at = f"layers.{index}", f"layers.{index}.mixer"
            mixer: Attention | Mamba2
            if layer.mixer == "mamba2":
                mixer = Mamba2(
                    sizes,
                    in_proj=get(f"{mixer_at}.in_proj.weight"),
                    conv_weight=get(f"{mixer_at}.conv1d.weight"),
                    conv_bias=get(f"{mixer_at}.conv1d.bias"),
                    dt_bias=get(f"{mixer_at}.dt_bias", torch.float32),
                    a_log=get(f"{mixer_at}.A_log", torch.float32),
                    skip=get(f"{mixer_at}.D", torch.float32),
                    norm=norm(f"{mixer_at}.norm.weight"),
                    out_proj=get(f"{mixer_at}.out_proj.weight"),
                )
            else:
                q, k, v, o = (get(f"{mixer_at}.{name}_proj.weight") for name in "qkvo")
                mixer = Attention(q, k, v, o, config.head_dim)
            layers.append(
                NativeDecoderLayer(
                    input_norm=norm(f"{at}.input_norm.weight"),
                    mixer=mixer,
                    sliding_window=config.sliding_window if layer.mixer == "sliding" else None,
                    post_norm=norm(f"{at}.post_norm.weight") if layer.mlp else None,
                    mlp=SwiGLU(*(get(f"{at}.mlp.{name}_proj.weight") for name in ("gate", "up", "down")))
                    if layer.mlp
                    else None,
                )
            )
        self._layers = tuple(layers)

    @property
    def max_positions(self) -> int:
        return self.config.max_position_embeddings

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def forward(self, context: ForwardContext) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size] after the last layer, before the final norm.

        Mutates the caches in `context`: keys and values of every token, and the state of every row.
        """
        # 1. embeddings
        x = self._embedding.index_select(0, context.token_ids)
        if context.images is not None:
            x[context.images.indices] = context.images.embeddings.to(x.dtype)
        rotary = self._rotary.at(context.positions)
        # 2. layers; operations are planned when the first layer of their kind comes by
        attention: dict[int | None, AttentionRun] = {}
        mamba: MambaRun | None = None
        for layer, cache in zip(self._layers, context.caches, strict=True):
            normed = layer.input_norm(x)
            if isinstance(layer.mixer, Mamba2):
                assert isinstance(cache, StateCache)
                if mamba is None:
                    mamba = self._ops.plan_mamba(context, cache)
                x = x + layer.mixer(normed, mamba, cache)
            else:
                assert isinstance(cache, AttentionCache)
                window = layer.sliding_window
                if window not in attention:
                    tables = _tables(context, window)
                    attention[window] = self._ops.plan_attention(context, tables, window, cache)
                x = x + layer.mixer(normed, rotary, attention[window], cache)
            if layer.mlp is not None and layer.post_norm is not None:
                x = x + layer.mlp(layer.post_norm(x))
        return x

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] as `forward` gives it -> [n, vocab_size] float32."""
        return self._head(self._norm(hidden)).float()


def _tables(context: ForwardContext, sliding_window: int | None) -> BlockTables:
    tables = context.full if sliding_window is None else context.window
    assert tables is not None, "the context lacks the block tables of a layer"
    return tables
