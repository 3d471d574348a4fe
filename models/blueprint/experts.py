"""MoE: a mixture of experts as frozen data: who routes, how experts are stored, what is shared."""

from dataclasses import dataclass, replace
from typing import Literal

from hybrid.pools.specs import LayerSpec

from .parts import MLP, Activation, CacheDtypes, Norm, Shapes, linear


@dataclass(frozen=True, slots=True)
class Router:
    """Scores of the experts, and which and how much of the best count.

    scoring: "softmax" over all experts, then the best; "softmax_top": softmax over the best only; "sigmoid".
    """

    name: str  # tensors `{name}.weight` [num_experts, hidden_size] and, with `bias`, `{name}.bias`
    scoring: Literal["softmax", "softmax_top", "sigmoid"]
    normalise: bool = False  # the chosen weights sum to 1 (before `scale`)
    sum_eps: float = 1e-20  # added to the sum that normalises
    scale: float = 1.0
    bias: bool = False  # of the logits
    correction: str | None = None  # tensor [num_experts], added to the scores when choosing, not to the weights
    groups: int = 1  # experts lie in groups of which only the best `top_groups` are considered
    top_groups: int = 1
    norm: Norm | None = None  # of what it sees
    input_scale: str | None = None  # tensor [hidden_size]: multiplies what it sees, and so does hidden_size ** -0.5
    expert_scale: str | None = None  # tensor [num_experts]: multiplies the weights in the end

    def tensors(self, num_experts: int, hidden_size: int) -> Shapes:
        shapes = linear(self.name, num_experts, hidden_size, self.bias)
        if self.correction is not None:
            shapes[self.correction] = (num_experts,)
        if self.norm is not None:
            shapes |= self.norm.tensors()
        if self.input_scale is not None:
            shapes[self.input_scale] = (hidden_size,)
        if self.expert_scale is not None:
            shapes[self.expert_scale] = (num_experts,)
        return shapes


@dataclass(frozen=True, slots=True)
class Latent:
    """Experts work in a smaller space: projections into it and, of their sum, back. Router and shared expert do not."""

    size: int
    into: str
    back: str
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoE:
    """Sum over the chosen experts of weight * expert(x), plus the shared expert.

    layout: "list": one tensor per expert and projection, `{experts}.{i}.{projection}.weight`; "stacked": `fused`
    [E, 2 I, H] (gate first) and `down` [E, H, I] under `{experts}.`; "transposed": as stacked, but [E, H, 2 I] and
    [E, I, H]; "gpt_oss": as transposed, but gate and up interleaved, and biases, with the activation of gpt-oss:
    clamped, (up + 1) * swish.
    """

    name: str
    hidden_size: int
    intermediate_size: int
    num_experts: int
    top_k: int
    router: Router
    layout: Literal["list", "stacked", "transposed", "gpt_oss"]
    experts: str  # prefix of the experts' tensors
    activation: Activation = "silu"
    gated: bool = True
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")  # list
    stacked: tuple[str, str] = ("gate_up_proj", "down_proj")  # others: names of the two tensors
    latent: Latent | None = None
    shared: MLP | None = None
    shared_gate: str | None = None  # tensor [1, hidden_size]: sigmoid of it scales the shared expert
    norm: Norm | None = None  # of what the experts see; router and shared expert see x

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(f"{self.name}: {self.top_k} experts per token of {self.num_experts}")

    def as_stored(self, shapes: Shapes) -> "MoE":
        """Some files stack what others list, or transpose what they stack."""
        fused, down = self.stacked_names
        if self.layout != "list" or fused not in shapes:
            return self
        transposed = replace(self, layout="transposed")
        expected = transposed.tensors()
        turned = shapes[fused] == expected[fused] and shapes.get(down) == expected[down]
        return transposed if turned else replace(self, layout="stacked")

    @property
    def width(self) -> int:
        """Of what an expert reads and gives."""
        return self.hidden_size if self.latent is None else self.latent.size

    @property
    def stacked_names(self) -> tuple[str, str]:
        """Into the experts (gate and up), out of them."""
        fused, down = (f"{self.experts}.{name}" for name in self.stacked)
        return fused, down

    @property
    def listed(self) -> set[str]:
        """Tensors of the experts where they lie one by one; routed experts are adapted stacked."""
        ids = range(self.num_experts) if self.layout == "list" else ()
        return {f"{self.experts}.{i}.{projection}.weight" for i in ids for projection in self.projections}

    @property
    def lora_names(self) -> tuple[str, str]:
        """What an adapter calls the stacked experts: into them, out of them."""
        fused, down = (name.removesuffix(".weight") for name in self.stacked_names)
        if self.layout == "list" and not self.gated:
            fused = f"{self.experts}.{self.projections[1]}"
        return fused, down

    def lora_targets(self) -> Shapes:
        """Routed experts as [E, out, in], gate and up in the order in which the layout stacks them."""
        fused, down = self.lora_names
        inner = self.intermediate_size * (2 if self.gated else 1)
        return {
            fused: (self.num_experts, inner, self.width),
            down: (self.num_experts, self.width, self.intermediate_size),
        }

    def tensors(self) -> Shapes:
        hidden, inner, count = self.width, self.intermediate_size, self.num_experts
        shapes = self.router.tensors(count, self.hidden_size)
        if self.latent is not None:
            shapes |= linear(self.latent.into, hidden, self.hidden_size, self.latent.bias)
            shapes |= linear(self.latent.back, self.hidden_size, hidden, self.latent.bias)
        if self.layout == "list":
            gate, up, down = self.projections
            for i in range(count):
                at = f"{self.experts}.{i}"
                if self.gated:
                    shapes |= linear(f"{at}.{gate}", inner, hidden)
                shapes |= linear(f"{at}.{up}", inner, hidden) | linear(f"{at}.{down}", hidden, inner)
        else:
            fused, down = self.stacked_names
            wide = 2 * inner if self.gated else inner
            if self.layout == "stacked":
                shapes |= {fused: (count, wide, hidden), down: (count, hidden, inner)}
            else:
                shapes |= {fused: (count, hidden, wide), down: (count, inner, hidden)}
            if self.layout == "gpt_oss":
                shapes |= {f"{fused}_bias": (count, wide), f"{down}_bias": (count, hidden)}
        if self.norm is not None:
            shapes |= self.norm.tensors()
        if self.shared is not None:
            shapes |= self.shared.tensors()
        if self.shared_gate is not None:
            shapes[self.shared_gate] = (1, self.hidden_size)
        return shapes

    def specs(self, dtypes: CacheDtypes) -> tuple[LayerSpec, ...]:
        del dtypes
        return ()
