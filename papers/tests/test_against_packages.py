"""Mixers and kernels against other packages, with copied weights. Packages that are not installed are skipped (`pip
install ./papers[peers]` installs them)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lagwise.mixers import AttentionMixer, ShortConvMixer, ToeplitzMixer
from lagwise.ops import chunked_attention
from lagwise_papers.family import GMLPMixer, LinearAttentionMixer, LRUMixer, S5Mixer

CHANNELS, LENGTH = 6, 40


def copy(pairs: dict[Tensor, Tensor]) -> None:
    """Copy parameters of other packages to ours."""
    with torch.no_grad():
        for ours, theirs in pairs.items():
            ours.copy_(theirs.reshape(ours.shape))


def parts(t: Tensor) -> Tensor:
    return torch.view_as_real(t.detach().resolve_conj().contiguous())


def signal(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, LENGTH, CHANNELS, dtype=dtype)


def same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * float(theirs.detach().abs().max()))


@pytest.mark.parametrize("two_sided", [False, True])
def test_s5(two_sided: bool) -> None:
    """s5-pytorch, which keeps all states rather than one of each conjugate pair."""
    theirs = pytest.importorskip("s5").S5(CHANNELS, state_width=8, bidir=two_sided).seq
    ours = S5Mixer(CHANNELS, causal=not two_sided, modes=8)
    poles, outputs = theirs.Lambda.detach(), theirs.C.detach().unflatten(1, (-1, 8)).transpose(0, 1)
    copy({ours.rate: (-poles.real).log(), ours.angle: poles.imag, ours.log_step: theirs.log_step})
    copy({ours.input: theirs.B, ours.output: parts(outputs / 2), ours.direct: theirs.D})
    x = signal()
    same(ours(x), torch.stack([theirs(row) for row in x]))


def test_lru() -> None:
    """lru-pytorch, where D is a matrix."""
    theirs = pytest.importorskip("LRU_pytorch").LRU(CHANNELS, CHANNELS, 5)
    ours = LRUMixer(CHANNELS, states=5)
    copy({ours.rate: theirs.nu_log, ours.log_angle: theirs.theta_log, ours.log_gain: theirs.gamma_log})
    copy({ours.input: parts(theirs.B), ours.output: parts(theirs.C), theirs.D: torch.diag(ours.direct.detach())})
    x = signal()
    same(ours(x), theirs(x))


def test_dss() -> None:
    """gated-state-spaces-pytorch, where channels share the poles and the step is 1."""
    module = pytest.importorskip("gated_state_spaces_pytorch.gss")
    theirs = module.DSS(dim=CHANNELS, kernel_N=4, dss_kernel_lambda_imag_exp=False)
    ours = ToeplitzMixer(CHANNELS, kernel={"name": "dss", "modes": 4})
    kernel: Any = ours.kernel
    weights = torch.stack([theirs.C_real, theirs.C_imag], 2)
    copy({kernel.log_step: torch.zeros(CHANNELS), kernel.amplitude: weights, kernel.direct: theirs.param_D})
    for mine, own in ((kernel.rate, theirs.Lambda_real), (kernel.angle, theirs.Lambda_imag)):
        copy({mine: own.expand(CHANNELS, -1)})
    x = signal()
    same(ours(theirs.norm(x)), theirs(x))


@pytest.mark.parametrize("causal", [True, False])
def test_gmlp(causal: bool) -> None:
    """g-mlp-pytorch."""
    theirs = pytest.importorskip("g_mlp_pytorch").gMLPBlock(
        dim=CHANNELS, dim_ff=4 * CHANNELS, seq_len=LENGTH, causal=causal
    )
    ours = GMLPMixer(CHANNELS, causal=causal, max_length=LENGTH, expansion=4, matrix="dense")
    gate = theirs.sgu
    torch.nn.init.normal_(gate.weight)
    copy({ours.mixing: gate.weight[0], ours.bias: gate.bias[0], ours.input.weight: theirs.proj_in[0].weight})
    copy({ours.input.bias: theirs.proj_in[0].bias, ours.norm.weight: gate.norm.weight, ours.norm.bias: gate.norm.bias})
    copy({ours.out.weight: theirs.proj_out.weight, ours.out.bias: theirs.proj_out.bias})
    x = signal()
    same(ours(x), theirs(x))


def test_short_conv() -> None:
    """LFM2 in transformers."""
    module = pytest.importorskip("transformers.models.lfm2.modeling_lfm2")
    config = module.Lfm2Config(hidden_size=CHANNELS, num_hidden_layers=1, layer_types=["conv"])
    theirs = module.Lfm2ShortConv(config, 0)
    ours = ShortConvMixer(CHANNELS, kernel_size=config.conv_L_cache)
    copy({ours.taps: theirs.conv.weight[:, 0].flip(1), ours.input.weight: theirs.in_proj.weight})
    copy({ours.out.weight: theirs.out_proj.weight})
    x = signal()
    same(ours(x), theirs(x))


@pytest.mark.parametrize("two_sided", [False, True])
def test_ema(two_sided: bool) -> None:
    """mega-pytorch. Its decay is (1 - alpha) times the dampening instead of 1 - alpha times it, so the same
    exponentials have other parameters: p beta instead of alpha beta."""
    module = pytest.importorskip("mega_pytorch.mega_pytorch")
    theirs = module.MultiHeadedEMA(dim=CHANNELS, heads=4, bidirectional=two_sided).double()
    ours = ToeplitzMixer(CHANNELS, causal=not two_sided, kernel={"name": "ema", "dimension": 4}).double()
    kernel: Any = ours.kernel
    sides = 2 if two_sided else 1
    factors = [(theirs.alphas, theirs.dampen_factors)]
    if two_sided:
        factors.append((theirs.reverse_alphas, theirs.reverse_dampen_factors))
    alpha, dampening = (torch.stack([pair[i].sigmoid() for pair in factors]) for i in range(2))
    decay = ((1 - alpha) * dampening)[:, None].expand(-1, CHANNELS, -1)
    p = 1 - decay / 2  # any above 1 - decay
    expansion, reduction = (w.unflatten(0, (sides, 4)).transpose(1, 2) for w in (theirs.expansion, theirs.reduction))
    signs = 1 - 2 * (torch.arange(4) % 2)
    copy({kernel.delta: torch.logit(p), kernel.alpha: torch.logit((1 - decay) / p)})
    copy({kernel.beta: expansion * alpha[:, None] / p - signs, kernel.gamma: 2 * reduction})  # over the root of 4
    x = signal(torch.float64)
    same(ours(x), theirs(x), 1e-10)


@pytest.mark.parametrize("causal", [True, False])
def test_chunked_attention(causal: bool) -> None:
    """local-attention without its look-back to other windows."""
    module = pytest.importorskip("local_attention")
    theirs = module.LocalAttention(window_size=8, causal=causal, look_backward=0, look_forward=0)
    query, key, value = torch.randn(3, 2, 4, LENGTH, CHANNELS)
    same(chunked_attention(query, key, value, chunk=8, causal=causal), theirs(query, key, value))


def test_attention_with_alibi() -> None:
    """x-transformers, which has no biases in its projections."""
    module = pytest.importorskip("x_transformers.x_transformers")
    theirs = module.Attention(8, heads=4, dim_head=2, causal=True)
    ours = AttentionMixer(8, heads=4)
    copy({ours.qkv.weight: torch.cat([theirs.to_q.weight, theirs.to_k.weight, theirs.to_v.weight])})
    copy({ours.out.weight: theirs.to_out.weight, ours.qkv.bias: torch.zeros(24), ours.out.bias: torch.zeros(8)})
    x = torch.randn(2, LENGTH, 8)
    same(ours(x), theirs(x, rel_pos=module.AlibiPositionalBias(heads=4, total_heads=4)))


def test_favor() -> None:
    """performer-pytorch, two-sided and without the constant that it adds to features."""
    module = pytest.importorskip("performer_pytorch.performer_pytorch")
    mixer = LinearAttentionMixer(CHANNELS, causal=False, heads=2, feature_map="favor", count=30)
    torch.nn.init.normal_(mixer.qkv.weight)
    assert mixer.random is not None
    x = signal()
    query, key, value = mixer.qkv(x).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    query, key = (
        module.softmax_kernel(t, projection_matrix=mixer.random, is_query=is_query, eps=0.0)
        for t, is_query in ((query, True), (key, False))
    )
    same(mixer(x), mixer.out(module.linear_attention(query, key, value).transpose(1, 2).flatten(2)), 1e-4)
