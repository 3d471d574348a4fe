"""Mamba-1 and Mamba-2 as the authors' own package stores them: no `model_type`, the layer's keys under `ssm_cfg`.

Source: `MambaConfig`, `MixerModel`, `Mamba` and `Mamba2` of state-spaces/mamba; what `ssm_cfg` leaves out has the
defaults of these classes. The published files are pickles, which are refused: convert them to safetensors first.
"""

from math import ceil

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Decoder, Layer
from ..blueprint.model import Model
from ..blueprint.parts import Norm
from ..blueprint.recurrent import Mamba1, Mamba2
from .shared import common

EPS = 1e-5  # of every norm; no configuration says it
COMMON = {"layer", "d_state", "d_conv", "expand", "conv_bias", "bias"}
KNOWN = {  # keys of `ssm_cfg` that are read
    "Mamba1": COMMON | {"dt_rank"},
    "Mamba2": COMMON | {"headdim", "d_ssm", "ngroups", "D_has_hdim", "rmsnorm", "norm_before_gate", "dt_limit"},
}
# Keys of `ssm_cfg` that only initialise, or choose between kernels.
UNUSED = {"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path", "use_mem_eff_path"}
UNUSED |= {"A_init_range", "conv_init", "chunk_size"}


def model(config: ConfigReader) -> Model:
    """The blueprint of a checkpoint of the package `mamba_ssm`."""
    config.refuse("attn_layer_idx", ([],), "layers with attention are not read")
    config.refuse("d_intermediate", (0,), "layers with an MLP are not read")
    config.refuse("rms_norm", (True,), "the norms are RMS norms")
    hidden, ssm = config.integer("d_model"), config.reader("ssm_cfg")
    layer_kind = ssm.one_of("layer", tuple(KNOWN), default="Mamba1")
    for key in ssm:
        if key not in KNOWN[layer_kind] | UNUSED:
            raise ssm.error(key, ssm.get(key), f"absent: a {layer_kind} layer is not known to have it")
    vocab_size, multiple = config.integer("vocab_size"), config.integer("pad_vocab_size_multiple", 8)
    mixer = _mamba1 if layer_kind == "Mamba1" else _mamba2

    def layer(at: str) -> Layer:
        return common.pre_norm_layer((Norm(f"{at}.norm", hidden, EPS), mixer(ssm, f"{at}.mixer", hidden)))

    tied = config.flag("tie_embeddings", True)
    return Model(
        decoder=Decoder(
            vocab_size=ceil(vocab_size / multiple) * multiple,
            hidden_size=hidden,
            max_positions=common.RECURRENT_POSITIONS,
            layers=tuple(layer(f"backbone.layers.{i}") for i in range(config.count("n_layer"))),
            embedding="backbone.embedding.weight",
            norm=Norm("backbone.norm_f", hidden, EPS),
            head=None if tied else common.HEAD,
            tied_head=common.HEAD if tied else None,
            residual_float32=config.flag("residual_in_fp32", True),
        ),
        dtype=common.dtype(config),
        eos_token_ids=common.eos_token_ids(config),
    )


def _mamba1(ssm: ConfigReader, at: str, hidden: int) -> Mamba1:
    dt_rank = ssm.get("dt_rank", "auto")
    return Mamba1(
        name=at,
        hidden_size=hidden,
        inner_size=ssm.integer("expand", 2) * hidden,
        state_size=ssm.integer("d_state", 16),
        dt_rank=ceil(hidden / 16) if dt_rank == "auto" else ssm.integer("dt_rank"),
        conv_kernel=ssm.integer("d_conv", 4, at_least=2),
        conv_bias=ssm.flag("conv_bias", True),
        proj_bias=ssm.flag("bias", False),
    )


def _mamba2(ssm: ConfigReader, at: str, hidden: int) -> Mamba2:
    inner, head_dim, groups = ssm.integer("expand", 2) * hidden, ssm.integer("headdim", 64), ssm.integer("ngroups", 1)
    ssm.refuse("d_ssm", (inner,), "the scan is over all inner channels")
    ssm.refuse("D_has_hdim", (False,), "D is one number per head")
    return Mamba2(
        name=at,
        hidden_size=hidden,
        num_heads=ssm.multiple("headdim", inner, "headdim", head_dim) // head_dim,
        head_dim=head_dim,
        state_size=ssm.integer("d_state", 128),
        n_groups=groups,
        conv_kernel=ssm.integer("d_conv", 4, at_least=2),
        norm=Norm(f"{at}.norm", inner, EPS, groups=groups) if ssm.flag("rmsnorm", True) else None,
        norm_before_gate=ssm.flag("norm_before_gate", False),
        conv_bias=ssm.flag("conv_bias", True),
        proj_bias=ssm.flag("bias", False),
        dt_limit=common.step_size_limit(ssm, "dt_limit"),
    )
