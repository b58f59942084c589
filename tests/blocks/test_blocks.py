"""Blocks and units against their published formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from every_mixer import diagonal
from torch import Tensor, nn

from lagwise import testing
from lagwise.blocks import BLOCKS, GLU, MLP, ChainBlock, MegaBlock, MegalodonBlock, PreNormBlock, QueryKey
from lagwise.mixers import GTU, AttentionMixer, EMAMixer, TCNMixer, TimestepNorm
from lagwise.ops import toeplitz_reference
from lagwise.tables import build

KERNEL = {"name": "rpe", "hidden": 8, "layers": 1}
TCN = {"name": "tcn", "kernel_size": 3, "dilation": 2, "depth": 3}
TABLE_7: dict[str, dict[str, Any]] = {
    "GTU + GLU": {"token_mixer": {"name": "gtu", "kernel": KERNEL}},
    "GTU only": {"token_mixer": {"name": "gtu", "kernel": KERNEL}, "channel_mixer": {"name": "none"}},
    "attention + GLU": {"token_mixer": {"name": "attention", "heads": 2}},
    "Transformer": {
        "token_mixer": {"name": "attention", "heads": 2},
        "channel_mixer": {"name": "mlp"},
        "norm": "layer",
    },
}
every_structure = pytest.mark.parametrize("options", TABLE_7.values(), ids=TABLE_7)


def affine(layer: nn.Linear, x: Tensor) -> Tensor:
    return x @ layer.weight.t() + layer.bias


@pytest.mark.covers("TNN §3.1 and fig. 2", "SKI-TNN app. A")
def test_gtu_equals_its_formula() -> None:
    """W_o (silu(W_u x) * T silu(W_v x)), with dense Toeplitz matrices T."""
    unit = GTU(6, expansion=2, kernel=KERNEL).double()
    x = torch.randn(2, 30, 6, dtype=torch.float64)
    mixed = toeplitz_reference(F.silu(affine(unit.value, x)), unit.toeplitz.kernel.taps(30))
    expected = affine(unit.out, F.silu(affine(unit.gate, x)) * mixed)
    torch.testing.assert_close(unit(x), expected, rtol=0, atol=1e-12)


@pytest.mark.covers("TNN §3.1 and fig. 2")
def test_channel_mixers_equal_their_formulas() -> None:
    x = torch.randn(3, 6)
    glu, mlp = GLU(6, expansion=2), MLP(6)
    torch.testing.assert_close(glu(x), affine(glu.out, F.silu(affine(glu.gate, x)) * affine(glu.value, x)))
    torch.testing.assert_close(mlp(x), affine(mlp.down, F.gelu(affine(mlp.up, x))))
    assert (glu.gate.out_features, mlp.up.out_features) == (12, 24)


@pytest.mark.covers("TNN §3.1 and fig. 2")
def test_prenorm_block_is_two_residual_layers() -> None:
    block = PreNormBlock(6, **TABLE_7["GTU + GLU"]).double()
    x = torch.randn(2, 20, 6, dtype=torch.float64)

    def norm(z: Tensor) -> Tensor:
        return z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    h = x + block.token_mixer(norm(x))
    torch.testing.assert_close(block(x), h + block.channels.mixer(norm(h)), rtol=0, atol=1e-12)
    assert not list(block.token_norm.parameters())


@pytest.mark.covers("TNN table 7")
@every_structure
def test_structures_of_table_7(options: dict) -> None:
    block = PreNormBlock(6, **options)
    assert (block.channels.mixer is None) == (options.get("channel_mixer") == {"name": "none"})
    assert isinstance(block.token_mixer, GTU if options["token_mixer"]["name"] == "gtu" else AttentionMixer)


MEGA = {"name": "mega", "query_size": 4, "chunk": 7}
GLU_WITHOUT_BIAS = {"name": "glu", "bias": False}
EVERY_BLOCK: dict[str, dict[str, Any]] = {
    **{name: {"name": "prenorm", **options} for name, options in TABLE_7.items()},
    "EMA-MLP": {"name": "prenorm", "token_mixer": {"name": "ema"}, "channel_mixer": {"name": "mlp"}},
    "TCN-MLP": {"name": "prenorm", "token_mixer": TCN, "channel_mixer": {"name": "mlp"}},
    "MEGA": MEGA,
    "MEGA, Laplace, simple bias": {**MEGA, "function": "laplace", "position": "simple"},
    "TCNCA": {**MEGA, "memory": TCN, "value_size": 5, "norm": "rms"},
    "MEGA with its other norm": {**MEGA, "norm": "scale", "activation": "gelu"},
    "MEGA with a TNO": {**MEGA, "memory": {"name": "toeplitz", "kernel": KERNEL}},
    "Megalodon": {**MEGA, "name": "megalodon", "heads": 2, "groups": 3},
    "Megalodon with SwiGLU": {**MEGA, "name": "megalodon", "value_size": 5, "channel_mixer": GLU_WITHOUT_BIAS},
    "TCNCA-simple": {
        "name": "chain",
        "blocks": [
            {"name": "prenorm", "token_mixer": TCN, "channel_mixer": {"name": "none"}},
            {
                "name": "prenorm",
                "token_mixer": {"name": "chunked_attention", "chunk": 7},
                "channel_mixer": {"name": "mlp"},
            },
        ],
    },
}
CAUSAL_BLOCKS: dict[str, dict[str, Any]] = {
    **EVERY_BLOCK,
    "Gecko": {**MEGA, "name": "megalodon", "groups": 2, "sliding": True},
}
every_block = diagonal("spec", EVERY_BLOCK.values())
every_causal_block = diagonal("spec", CAUSAL_BLOCKS.values())


def make(spec: dict[str, Any], *, causal: bool = True) -> nn.Module:
    """A block whose parameters all affect the output; fresh MEGA blocks have nearly uniform attention."""
    block = build(BLOCKS, spec, 6, what="block", causal=causal).double()
    with torch.no_grad():
        for module in block.modules():
            if isinstance(module, QueryKey):
                module.scale.normal_()
                module.shift.normal_()
    return block


@pytest.mark.covers("MEGA §3.2 and 3.3, eq. 6 to 15", "TCNCA app. C and fig. 3")
def test_mega_equals_its_formula() -> None:
    """TCNCA fig. 3, with attention over all pairs of one chunk."""
    block: Any = make({"name": "mega", "query_size": 4, "value_size": 5, "chunk": 7, "position": "none"})
    assert isinstance(block, MegaBlock)
    x = torch.randn(2, 25, 6, dtype=torch.float64)
    normed = block.norm(x)
    memory = block.memory(normed)
    u, z, r, h = (memory @ block.gates.weight.t() + block.gates.bias).split((6, 4, 5, 6), dim=2)
    z, r, v = F.silu(z), F.silu(r), F.silu(affine(block.value, normed))
    q, k = (z * block.query_key.scale[n] + block.query_key.shift[n] for n in range(2))
    place = torch.arange(25)
    allowed = (place[:, None] // 7 == place // 7) & (place[:, None] >= place)
    weights = (q @ k.transpose(1, 2) / 2).masked_fill(~allowed, float("-inf")).softmax(-1)
    h = F.silu(h + affine(block.out, weights @ v * r))
    expected = x + u.sigmoid() * (h - x)
    expected = expected + block.channels.mixer(block.channels.norm(expected))
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-12)


@pytest.mark.covers("Megalodon §3.3 and 3.4")
@pytest.mark.parametrize("swiglu", [False, True])
def test_megalodon_equals_its_formula(swiglu: bool) -> None:
    """With moments of all tokens so far, a convolution with the kernel's taps, and attention over all pairs of a
    chunk."""
    mixer = {"name": "glu" if swiglu else "mlp", "bias": False, **({} if swiglu else {"activation": "silu"})}
    options = {"query_size": 4, "value_size": 10, "heads": 2, "groups": 3, "chunk": 7, "position": "none"}
    block: Any = make({"name": "megalodon", **options, "channel_mixer": mixer})
    assert isinstance(block, MegalodonBlock)
    with torch.no_grad():
        for module in block.modules():  # norms begin with a weight of 1 and a bias of 0
            if isinstance(module, TimestepNorm | nn.LayerNorm | nn.RMSNorm):
                for parameter in module.parameters():
                    parameter.normal_()
    x = torch.randn(2, 25, 6, dtype=torch.float64)
    norms = []
    for t in range(25):
        so_far = x[:, : t + 1].unflatten(2, (3, 2)).transpose(1, 2).flatten(2)
        mean, variance = so_far.mean(2, keepdim=True), so_far.var(2, correction=0, keepdim=True)
        norms.append(((x[:, t].unflatten(1, (3, 2)) - mean) / (variance + 1e-5).sqrt()).flatten(1))
    normed = torch.stack(norms, 1) * block.timestep_norm.weight + block.timestep_norm.bias
    memory = toeplitz_reference(normed, block.memory.kernel.taps(25))
    memory = memory / (memory.square().mean(2, keepdim=True) + 1e-5).sqrt() * block.memory_norm.weight
    z = affine(block.shared, memory).unflatten(2, (2, 2))
    z = (z / (z.square().mean(3, keepdim=True) + 1e-5).sqrt()).flatten(2)
    gamma, beta = block.query_key.scale / 2**0.5, block.query_key.shift
    q, k = ((z * gamma[n] + beta[n]).unflatten(2, (2, 2)).transpose(1, 2) for n in range(2))
    v = F.silu(affine(block.value, normed)).unflatten(2, (2, 5)).transpose(1, 2)
    place = torch.arange(25)
    allowed = (place[:, None] // 7 == place // 7) & (place[:, None] >= place)
    attended = (q @ k.transpose(2, 3)).masked_fill(~allowed, float("-inf")).softmax(-1) @ v
    r = F.silu(affine(block.reset, memory))
    y = x + affine(block.candidate, memory) + (attended.transpose(1, 2).flatten(2) * r) @ block.out.weight.t()
    h, layer = block.channels.norm(y), block.channels.mixer
    if swiglu:
        expected = x + (F.silu(h @ layer.gate.weight.t()) * (h @ layer.value.weight.t())) @ layer.out.weight.t()
    else:
        expected = x + F.silu(h @ layer.up.weight.t()) @ layer.down.weight.t()
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-12)


@pytest.mark.covers("TCNCA tables 4 and 5")
@pytest.mark.parametrize(("name", "mixer"), [("EMA-MLP", EMAMixer), ("TCN-MLP", TCNMixer)])
def test_stacks_without_attention_are_two_residual_layers(name: str, mixer: type[nn.Module]) -> None:
    block: Any = make(EVERY_BLOCK[name])
    assert isinstance(block.token_mixer, mixer)
    assert isinstance(block.channels.mixer, MLP)
    x = torch.randn(2, 25, 6, dtype=torch.float64)
    h = x + block.token_mixer(block.token_norm(x))
    expected = h + block.channels.mixer(block.channels.norm(h))
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-12)


@pytest.mark.covers("TCNCA fig. 4")
def test_tcnca_simple_is_three_plain_residuals() -> None:
    """TCNCA fig. 4."""
    block: Any = make(EVERY_BLOCK["TCNCA-simple"])
    assert isinstance(block, ChainBlock)
    x = torch.randn(2, 25, 6, dtype=torch.float64)
    tcn, attention = block.blocks
    h = x + tcn.token_mixer(tcn.token_norm(x))
    h = h + attention.token_mixer(attention.token_norm(h))
    h = h + attention.channels.mixer(attention.channels.norm(h))
    torch.testing.assert_close(block(x), h, rtol=0, atol=1e-12)


@every_causal_block
def test_dropout_is_for_training_only(spec: dict) -> None:
    if spec["name"] == "chain":
        spec = {"name": "chain", "blocks": [{**link, "dropout": 0.5} for link in spec["blocks"]]}
    else:
        spec = {**spec, "dropout": 0.5}
    block = make(spec)
    x = torch.randn(2, 25, 6, dtype=torch.float64)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


@every_causal_block
def test_every_parameter_of_a_block_learns(spec: dict) -> None:
    block = make(spec)
    block(torch.randn(2, 25, 6, dtype=torch.float64)).square().sum().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


WHOLE = (testing.check_padding, testing.check_packing, testing.check_gradients, testing.check_weights)
STREAMED = (
    testing.check_causality,
    testing.check_streaming,
    testing.check_padding_anywhere,
    testing.check_old_states,
    testing.check_joined_states,
)


@diagonal(
    ("check", "spec", "causal"),
    [
        *((check, spec, causal) for spec in EVERY_BLOCK.values() for causal in (True, False) for check in WHOLE),
        *((check, spec, None) for spec in CAUSAL_BLOCKS.values() for check in STREAMED),
    ],
)
def test_blocks_keep_the_contract_of_mixers(check: Any, spec: dict, causal: bool | None) -> None:
    check(lambda _, causal: make(spec, causal=causal), 6, *([] if causal is None else [causal]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "rmss"}, "did you mean 'rms'"),
        ({"token_mixer": {"name": "attention", "heads": 4}}, "heads must divide the 6 channels"),
        ({"token_mixer": {"name": "gtu", "expansion": 0}}, "at least one channel"),
        ({"channel_mixer": {"name": "mlp", "expansion": 0.01}}, "at least one channel"),
        ({"token_mixer": {"name": "gtu", "causal": False}}, "option of token mixer"),
        ({"name": "mega", "memory": {"name": "emma"}}, "unknown memory: 'emma'; did you mean 'ema'"),
        ({"name": "mega", "query_size": 3}, "even size of queries, got 3"),
        ({"name": "mega", "memory": {}}, "memory must be a mapping with a 'name'"),
        ({"name": "megalodon", "heads": 3}, "heads must divide the 128 channels, got 3"),
        ({"name": "megalodon", "groups": 4}, "groups must divide the 6 channels, got 4"),
        ({"norm": "timestep"}, "unknown norm: 'timestep'"),
        ({"name": "chain"}, "list of at least one block"),
        ({"name": "chain", "blocks": [{"name": "prenorm", "norms": "rms"}]}, "option of block 0 of the chain"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(BLOCKS, {"name": "prenorm", **options}, 6, what="block")


@pytest.mark.parametrize("name", BLOCKS)
def test_wrong_shapes_are_named(name: str) -> None:
    options = {"blocks": [{"name": "mega"}]} if name == "chain" else {}
    block = BLOCKS[name](6, **options)
    with pytest.raises(ValueError, match="channels=6"):
        block(torch.ones(2, 5, 4))
    with pytest.raises(ValueError, match="channels=6"):
        block.prefill(torch.ones(2, 5, 4), block.init_state(2))
    with pytest.raises(ValueError, match=r"mask must be .*\(2, 5\)"):
        block.prefill(torch.ones(2, 5, 6), block.init_state(2), mask=torch.ones(2, 4))


def test_a_chain_adds_its_input_and_embeddings_before_each_block_but_the_first() -> None:
    torch.manual_seed(0)
    specs = [{"name": "prenorm", "token_mixer": {"name": "ema", "dimension": 2}} for _ in range(3)]
    chain = ChainBlock(4, blocks=specs, input_residual=True, block_embeddings=True)
    plain = ChainBlock(4, blocks=specs)
    plain.load_state_dict({name: value for name, value in chain.state_dict().items() if name != "shares"})
    inputs = torch.randn(2, 7, 12)
    x, *added = inputs.chunk(3, 2)
    torch.testing.assert_close(chain(torch.nn.functional.pad(x, (0, 8))), plain(x))  # a new one
    torch.nn.init.normal_(chain.shares)
    expected = x
    for index, block in enumerate(chain.blocks):
        if index:
            a, b = chain.shares[index - 1]
            expected = a * expected + b * x + added[index - 1]
        expected = block(expected)
    torch.testing.assert_close(chain(inputs), expected)
    state, tokens = chain.init_state(2), []
    for token in inputs.unbind(1):
        y, state = chain.step(token, state)
        tokens.append(y)
    torch.testing.assert_close(torch.stack(tokens, 1), expected)
