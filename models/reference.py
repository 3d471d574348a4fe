"""The native architecture in plain torch: the model that is trained, and the reference the engine is compared with.

Dense masks, no cache, no paging, one file. Knows no engine code: whole sequences in, logits out.

Symbols: B batch, T tokens, D hidden size, V vocabulary, H heads, P channels per Mamba head, N state size, G groups,
K convolution kernel. A Mamba-2 layer keeps a state h [H, P, N] per sequence and updates it, token by token, as
`h = exp(dt * A) * h + dt * x (outer) B`, and reads `y = h . C + D * x` (Dao and Gu 2024, "Transformers are SSMs").
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .native_config import NativeConfig, NativeLayer, NativeVisionConfig

Form = Literal["plain", "fast"]


class RMSNorm(nn.Module):
    """`x / rms(x) * weight` over the last dimension, computed in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        values = x.float()
        values = values * torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + self.eps)
        return (values * self.weight.float()).to(x.dtype)


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))`, without biases."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


def rotary_tables(num_tokens: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, head_dim] of absolute positions 0..T-1, halves repeated (the Llama convention)."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.arange(num_tokens, dtype=torch.float32)[:, None] * frequencies[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., T, head_dim]: first and second half form the complex pairs."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query causal attention; a window of w tokens sees positions t-w+1 .. t, None sees everything before."""

    def __init__(self, config: NativeConfig, window: int | None) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.theta = config.rope_theta
        self.window = window
        self.form: Form = "plain"
        self.q_proj = nn.Linear(config.hidden_size, self.num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        group = self.num_heads // self.num_kv_heads
        query = self.q_proj(x).view(batch, tokens, self.num_heads, self.head_dim).transpose(1, 2)  # [B, H, T, head]
        key = self.k_proj(x).view(batch, tokens, self.num_kv_heads, self.head_dim).transpose(1, 2)
        value = self.v_proj(x).view(batch, tokens, self.num_kv_heads, self.head_dim).transpose(1, 2)
        cos, sin = rotary_tables(tokens, self.head_dim, self.theta)
        cos, sin = cos.to(x), sin.to(x)
        query = rotate(query, cos, sin)
        key = rotate(key, cos, sin).repeat_interleave(group, dim=1)  # query head h reads kv head h // group
        value = value.repeat_interleave(group, dim=1)
        position = torch.arange(tokens, device=x.device)
        distance = position[:, None] - position[None, :]
        visible = distance >= 0
        if self.window is not None:
            visible &= distance < self.window
        if self.form == "fast":
            y = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        else:
            scores = (query @ key.transpose(-1, -2)) * self.head_dim**-0.5  # [B, H, T, T]
            y = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1) @ value
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1))
        return out


def scan_sequential(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The recurrence as it is written: x [B, T, H, P], dt [B, T, H], a [H], b and c [B, T, H, N] -> y [B, T, H, P]."""
    state = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[3])  # h [B, H, P, N]
    outputs = []
    for t in range(x.shape[1]):
        decay = torch.exp(dt[:, t] * a)[..., None, None]
        state = decay * state + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None, :]
        outputs.append((state * c[:, t, :, None, :]).sum(dim=-1))
    return torch.stack(outputs, dim=1)


def scan_chunked(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk: int = 32) -> Tensor:
    """The same function in its dual form, for training: attention-like inside chunks, a recurrence between them.

    Inside a chunk y_t = sum over s <= t of (c_t . b_s) exp(sum of dt * a over s+1..t) dt_s x_s ("Transformers are
    SSMs", section 6). b and c may be per group [B, T, G, N]; heads of a group share them.
    """
    _, tokens, heads, _ = x.shape
    padding = -tokens % chunk
    x, b, c = (F.pad(v, (0, 0, 0, 0, 0, padding)) for v in (x, b, c))
    dt = F.pad(dt, (0, 0, 0, padding))
    groups, per_group = b.shape[2], heads // b.shape[2]
    # 1. cut into chunks: [B, chunks, heads or groups, chunk, ...]
    x, b, c = (v.unflatten(1, (-1, chunk)).transpose(2, 3) for v in (x * dt[..., None], b, c))
    log_decay = (dt * a).unflatten(1, (-1, chunk)).transpose(2, 3).cumsum(dim=-1)  # [B, chunks, H, chunk]
    # 2. inside the chunks
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1)
    between = log_decay[..., :, None] - log_decay[..., None, :]
    decay = between.masked_fill(future, float("-inf")).exp().unflatten(2, (groups, per_group))
    scores = (c @ b.transpose(-1, -2)).unsqueeze(3) * decay  # [B, chunks, G, heads per group, chunk, chunk]
    y = scores.flatten(2, 3) @ x
    # 3. between the chunks: what each adds to the state, and what the state before it adds to the outputs
    b, c = (v.repeat_interleave(per_group, dim=2) for v in (b, c))
    added = (x * (log_decay[..., -1:] - log_decay).exp()[..., None]).transpose(-1, -2) @ b  # [B, chunks, H, P, N]
    kept = log_decay[..., -1].exp()[..., None, None]
    state = torch.zeros_like(added[:, 0])
    before = []
    for i in range(added.shape[1]):
        before.append(state)
        state = kept[:, i] * state + added[:, i]
    y = y + (c * log_decay.exp()[..., None]) @ torch.stack(before, dim=1).transpose(-1, -2)
    out: Tensor = y.transpose(2, 3).flatten(1, 2)[:, :tokens]
    return out


class Mamba2(nn.Module):
    """The Mamba-2 mixer of transformers' Mamba2 and Bamba: in_proj, causal conv, scan, gated RMSNorm, out_proj."""

    def __init__(self, config: NativeConfig) -> None:
        super().__init__()
        self.num_heads = config.mamba_num_heads
        self.head_dim = config.mamba_head_dim
        self.state_size = config.mamba_state_size
        self.n_groups = config.mamba_n_groups
        self.inner_size = config.mamba_inner_size
        self.conv_dim = config.mamba_conv_dim
        self.kernel = config.mamba_conv_kernel
        self.form: Form = "plain"
        projected = self.inner_size + self.conv_dim + self.num_heads
        self.in_proj = nn.Linear(config.hidden_size, projected, bias=False)
        self.conv1d = nn.Conv1d(self.conv_dim, self.conv_dim, self.kernel, groups=self.conv_dim, bias=True)
        self.dt_bias = nn.Parameter(torch.zeros(self.num_heads))
        self.A_log = nn.Parameter(torch.zeros(self.num_heads))
        self.D = nn.Parameter(torch.ones(self.num_heads))
        self.norm = RMSNorm(self.inner_size, config.rms_norm_eps)
        self.out_proj = nn.Linear(self.inner_size, config.hidden_size, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        batch, tokens, _ = u.shape
        # 1. project, and convolve x, B and C over time
        z, xbc, dt = torch.split(self.in_proj(u), [self.inner_size, self.conv_dim, self.num_heads], dim=-1)
        grouped = self.n_groups * self.state_size
        x, b, c = torch.split(self._causal_conv(xbc), [self.inner_size, grouped, grouped], dim=-1)
        # 2. scan in fp32; heads of one group share B and C
        x = x.float().view(batch, tokens, self.num_heads, self.head_dim)
        b = b.float().view(batch, tokens, self.n_groups, self.state_size)
        c = c.float().view(batch, tokens, self.n_groups, self.state_size)
        dt = F.softplus(dt.float() + self.dt_bias.float())
        a = -torch.exp(self.A_log.float())
        if self.form == "fast":
            y = scan_chunked(x, dt, a, b, c)
        else:
            per_group = self.num_heads // self.n_groups
            y = scan_sequential(x, dt, a, b.repeat_interleave(per_group, dim=2), c.repeat_interleave(per_group, dim=2))
        y = y + self.D.float()[:, None] * x
        # 3. gate, normalise, project back
        gated = y.reshape(batch, tokens, self.inner_size) * F.silu(z.float())
        out: Tensor = self.out_proj(self.norm(gated).to(u.dtype))
        return out

    def _causal_conv(self, xbc: Tensor) -> Tensor:
        """Depthwise convolution over the last K tokens, zeros before the first; silu. [B, T, conv_dim]."""
        padded = F.pad(xbc, (0, 0, self.kernel - 1, 0))
        tokens = xbc.shape[1]
        # a sum of shifted products: the same numbers as conv1d, and much faster than a depthwise conv on a CPU
        out = padded[:, :tokens] * self.conv1d.weight[:, 0, 0]
        for k in range(1, self.kernel):
            out = out + padded[:, k : k + tokens] * self.conv1d.weight[:, 0, k]
        assert self.conv1d.bias is not None
        return F.silu(out + self.conv1d.bias)


class DecoderLayer(nn.Module):
    """Pre-norm residual: `x + mixer(norm(x))`, then `x + mlp(norm(x))` when the layer has an MLP."""

    def __init__(self, config: NativeConfig, layer: NativeLayer) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mixer: Mamba2 | Attention
        if layer.mixer == "mamba2":
            self.mixer = Mamba2(config)
        else:
            self.mixer = Attention(config, config.sliding_window if layer.mixer == "sliding" else None)
        self.has_mlp = layer.mlp
        if layer.mlp:
            self.post_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
            self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.input_norm(x))
        if self.has_mlp:
            x = x + self.mlp(self.post_norm(x))
        return x


class VisionAttention(nn.Module):
    """Full bidirectional attention over the patches of one picture; `qkv` rows are query, key, value in order."""

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(size, 3 * size)
        self.proj = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        images, patches, size = x.shape
        qkv = self.qkv(x).view(images, patches, 3, self.num_heads, size // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each [images, heads, patches, head]
        weights = ((query @ key.transpose(-1, -2)) * (size // self.num_heads) ** -0.5).softmax(dim=-1)
        out: Tensor = self.proj((weights @ value).transpose(1, 2).reshape(images, patches, size))
        return out


class TwoLayer(nn.Module):
    """`fc2(gelu(fc1(x)))`: the MLP of a vision block, and the projector."""

    def __init__(self, size: int, intermediate_size: int, out_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size, intermediate_size)
        self.fc2 = nn.Linear(intermediate_size, out_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class VisionBlock(nn.Module):
    """A pre-LN transformer block: attention, then MLP, both residual."""

    def __init__(self, config: NativeVisionConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.attn = VisionAttention(config.hidden_size, config.num_attention_heads)
        self.norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = TwoLayer(config.hidden_size, config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class VisionTower(nn.Module):
    """Pictures [num_images, 3, S, S] in [-1, 1] -> image tokens [num_images, num_image_tokens, out_size]."""

    def __init__(self, config: NativeVisionConfig, out_size: int) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.patch_embed = nn.Conv2d(3, size, config.patch_size, config.patch_size)
        self.pos_embed = nn.Parameter(torch.zeros(1, config.num_patches, size))
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(size, config.layer_norm_eps)
        self.projector = TwoLayer(size * config.merge_size**2, out_size, out_size)

    def forward(self, pixel_values: Tensor) -> Tensor:
        config = self.config
        images = pixel_values.shape[0]
        x = self.patch_embed(pixel_values).flatten(2).transpose(1, 2) + self.pos_embed  # [images, patches, size]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        # merge: each merge x merge neighbourhood, row-major inside, becomes one token; tokens are row-major too
        cells, merge = config.patches_per_side // config.merge_size, config.merge_size
        x = x.view(images, cells, merge, cells, merge, config.hidden_size).transpose(2, 3)
        out: Tensor = self.projector(x.reshape(images, cells * cells, merge * merge * config.hidden_size))
        return out


class NativeReference(nn.Module):
    """The whole model; parameter names are the tensor names of `model.safetensors`."""

    def __init__(self, config: NativeConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in config.layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.vision_config is not None:
            self.vision = VisionTower(config.vision_config, config.hidden_size)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> NativeReference:
        """Load `config.json` and `model.safetensors` in fp32, in evaluation mode."""
        folder = Path(directory)
        config = NativeConfig.from_dict(json.loads((folder / "config.json").read_text()))
        model = cls(config)
        tensors = load_file(folder / "model.safetensors")
        model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        return model.eval()

    def save(self, directory: str | Path) -> None:
        """Write `config.json` and `model.safetensors` (fp32) into the folder."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config.to_dict(), indent=2) + "\n")
        tensors = {name: tensor.detach().float().contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    def set_form(self, form: Form) -> None:
        """Mutates: all mixers compute as written ("plain") or in equivalent faster operations for training ("fast")."""
        for module in self.modules():
            if isinstance(module, Attention | Mamba2):
                module.form = form

    def embed(self, token_ids: Tensor, image_embeds: Tensor | None) -> Tensor:
        """Token embeddings [B, T, D]; placeholders take the rows of image_embeds [num_images, tokens, D], in order.

        Raises ValueError when placeholders and image embeddings differ in number.
        """
        x: Tensor = self.embed_tokens(token_ids)
        placeholders = token_ids == self.config.image_token_id
        wanted = int(placeholders.sum())
        rows = x.new_zeros(0, x.shape[-1]) if image_embeds is None else image_embeds.flatten(0, 1)
        if wanted != rows.shape[0]:
            raise ValueError(f"{wanted} image placeholder tokens, but {rows.shape[0]} image embeddings")
        if wanted:
            x = x.masked_scatter(placeholders[..., None], rows.to(x.dtype))
        return x

    def decode(self, x: Tensor) -> Tensor:
        """Input embeddings [B, T, D] through all layers and the last norm -> [B, T, D]."""
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.norm(x)
        return out

    def head(self, x: Tensor) -> Tensor:
        """Hidden states [..., D] -> logits [..., V]."""
        return F.linear(x, self.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight)

    def forward(self, token_ids: Tensor, pixel_values: Tensor | None = None) -> Tensor:
        """token_ids [B, T] with expanded placeholders, pixel_values [num_images, 3, S, S] -> logits [B, T, V].

        Pictures belong to placeholders in reading order, row after row. Pad on the right: everything is causal.
        """
        image_embeds = None if pixel_values is None else self.vision(pixel_values)
        return self.head(self.decode(self.embed(token_ids, image_embeds)))

    @torch.no_grad()
    def generate(self, token_ids: list[int], pixel_values: Tensor | None, max_tokens: int, eos: int) -> list[int]:
        """Greedy continuation of one prompt, recomputed from scratch for every token; ends with `eos` if it came."""
        image_embeds = None if pixel_values is None else self.vision(pixel_values)
        generated: list[int] = []
        while len(generated) < max_tokens:
            ids = torch.tensor([token_ids + generated], device=self.embed_tokens.weight.device)
            hidden = self.decode(self.embed(ids, image_embeds))[0, -1]
            generated.append(int(self.head(hidden).argmax()))
            if generated[-1] == eos:
                break
        return generated
