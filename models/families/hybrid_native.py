"""The native architecture of the bundled model: any order of Mamba-2, full and sliding attention, and a ViT."""

from collections.abc import Iterator

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Decoder, Layer, Part, Residual
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Attention, Norm
from ..blueprint.recurrent import Mamba2
from ..blueprint.rope import read_rope
from ..blueprint.vision import FixedTokens, Vision
from ..native_config import NativeConfig, NativeLayer
from ..native_tensors import vision_shapes


def model(config: ConfigReader) -> Model:
    """The blueprint of a native checkpoint."""
    native = NativeConfig.from_dict({key: config.get(key) for key in config})
    hidden, eps = native.hidden_size, native.rms_norm_eps
    rope = read_rope(config, native.head_dim)

    def mixer(layer: NativeLayer, at: str) -> Part:
        if layer.mixer == "mamba2":
            return Mamba2(
                name=at,
                hidden_size=hidden,
                num_heads=native.mamba_num_heads,
                head_dim=native.mamba_head_dim,
                state_size=native.mamba_state_size,
                n_groups=native.mamba_n_groups,
                conv_kernel=native.mamba_conv_kernel,
                norm=Norm(f"{at}.norm", native.mamba_inner_size, eps),
            )
        return Attention(
            name=at,
            hidden_size=hidden,
            num_heads=native.num_attention_heads,
            num_kv_heads=native.num_key_value_heads,
            head_dim=native.head_dim,
            rope=rope,
            sliding_window=native.sliding_window if layer.mixer == "sliding" else None,
        )

    def branches(layer: NativeLayer, at: str) -> Iterator[Residual]:
        yield Residual(Norm(f"{at}.input_norm", hidden, eps), (mixer(layer, f"{at}.mixer"),))
        if layer.mlp:
            yield Residual(Norm(f"{at}.post_norm", hidden, eps), (MLP(f"{at}.mlp", hidden, native.intermediate_size),))

    vision = native.vision_config
    return Model(
        decoder=Decoder(
            vocab_size=native.vocab_size,
            hidden_size=hidden,
            max_positions=native.max_position_embeddings,
            layers=tuple(Layer(tuple(branches(layer, f"layers.{i}"))) for i, layer in enumerate(native.layers)),
            embedding="embed_tokens.weight",
            norm=Norm("norm", hidden, eps),
            head=None if native.tie_word_embeddings else "lm_head.weight",
        ),
        dtype=native.torch_dtype,
        eos_token_ids=(native.eos_token_id,),
        vision=None
        if vision is None
        else Vision(
            tensors=vision_shapes(vision, hidden),
            image_token_id=native.image_token_id,
            tokens=FixedTokens(vision.num_image_tokens),
        ),
    )
