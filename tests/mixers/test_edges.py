"""Cases at the edge of what mixers accept: vanishing sums, padding in odd places, low precision, slow decays."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from every_mixer import CHANNELS, make, noise

from lagwise.blocks import MegaBlock, PreNormBlock
from lagwise.mixers import EMAMixer, TCNMixer, TimestepNorm
from lagwise.mixers.derived import frozen
from lagwise.mixers.state import fixed_start
from lagwise.models.inputs import check_precision
from lagwise.ops.recurrence import ema_scan


@pytest.mark.parametrize(("feature_map", "scale"), [("cosformer", 1.0), ("cosformer", 100.0), ("elu", 30.0)])
@pytest.mark.parametrize("causal", [True, False])
def test_linear_attention_has_finite_gradients_where_all_features_vanish(
    feature_map: str, scale: float, causal: bool
) -> None:
    mixer = make("linear_attention", {"feature_map": feature_map}, causal=causal, dtype=torch.float32)
    x = (scale * noise(2, 60, torch.float32)).requires_grad_()
    mask = torch.ones(2, 60, dtype=torch.bool)
    mask[0, :9] = False
    y = mixer(x, mask=mask)
    (1000 * y.square().sum()).backward()
    assert y.isfinite().all()
    grads = [x.grad, *(p.grad for p in mixer.parameters())]
    assert all(grad is not None and grad.isfinite().all() for grad in grads)


def test_features_of_elu_keep_their_digits() -> None:
    mixer = make("linear_attention", {}, dtype=torch.float32)
    u, place = torch.linspace(-40, 3, 200).view(1, 1, -1, 1), torch.ones(1, 200)
    low, exact = mixer._features(u, place), mixer._features(u.double(), place)
    torch.testing.assert_close(low.double(), exact, rtol=1e-5, atol=0)


def test_a_text_beyond_the_span_is_refused_within_a_graph() -> None:
    mixer = make("linear_attention", {"heads": 1, "feature_map": "cosformer", "span": 50}, dtype=torch.float32)
    with pytest.raises(ValueError, match="span is 50 tokens, got a text of 60"):
        mixer(noise(1, 60, torch.float32))
    with pytest.raises(Exception, match="span is 50 tokens, got a text of 60"):
        torch.compile(mixer, backend="eager", fullgraph=True)(noise(1, 60, torch.float32))


def test_padding_does_not_count_towards_a_kernels_longest_text() -> None:
    mixer = make("toeplitz", {"kernel": {"name": "free", "max_length": 20}}, dtype=torch.float64)
    x, mask = noise(2, 24), torch.zeros(2, 24, dtype=torch.bool)
    mask[0, :20], mask[1, 4:] = True, True
    y = mixer(x, mask=mask)
    torch.testing.assert_close(y[:1, :20], mixer(x[:1, :20]))
    torch.testing.assert_close(y[1:, 4:], mixer(x[1:, 4:]))
    mask[0, 20] = True
    with pytest.raises(ValueError, match="20 tokens, got a sequence of 21"):
        mixer(x, mask=mask)


@pytest.mark.real_device
def test_a_state_made_under_autocast_continues_without_it(device: torch.device) -> None:
    mixer, x = make("attention", {}, dtype=torch.float32), noise(1, 9, torch.float32)
    with torch.no_grad():
        with torch.autocast(device.type, torch.bfloat16):
            _, state = mixer.prefill(x, mixer.init_state(1))
        assert mixer.step(x[:, 0], state)[0].dtype == torch.float32


def test_states_and_layers_have_the_sizes_of_their_options() -> None:
    mixer = make("tcn", {"kernel_size": 3, "dilation": 2, "depth": 3})
    _, state = mixer.prefill(noise(1, 30), mixer.init_state(1))
    assert [ring.size for ring in state.rings] == [3, 5, 9]
    assert {name for name, _ in make("short_conv", {}).named_parameters()} == {"input.weight", "taps", "out.weight"}


def test_a_device_without_float64_takes_no_norm_over_time() -> None:
    with pytest.raises(ValueError, match=r"TimestepNorm .* computes in float64"):
        check_precision(TimestepNorm(CHANNELS), torch.device("mps"))


@pytest.mark.parametrize("name", ["ema", "tcn", "short_conv"])
@torch.no_grad()
def test_a_stream_begins_with_the_weights_that_there_are(name: str) -> None:
    mixer, x = make(name, {}), noise(1, 9)
    mixer.init_state(1)
    for parameter in mixer.parameters():
        parameter.data.mul_(0.5)  # which PyTorch does not count
    torch.testing.assert_close(mixer.prefill(x, mixer.init_state(1))[0], mixer(x))


def test_outputs_of_padded_rows_may_be_changed_in_place() -> None:
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 6:] = False
    x = noise(2, 9, torch.float32).requires_grad_()
    y = make("fnet", {}, causal=False, dtype=torch.float32)(x, mask=mask)
    y += x
    y.sum().backward()
    assert x.grad is not None


def test_a_stack_without_activation_can_be_pickled() -> None:
    mixer, x = make("tcn", {"activation": "none"}, dtype=torch.float32), noise(1, 20, torch.float32)
    assert torch.equal(pickle.loads(pickle.dumps(mixer))(x), mixer(x))


def test_two_sided_ski_refuses_degrees_that_explode() -> None:
    with pytest.raises(ValueError, match="degree must be at most 7, got 15"):
        make("toeplitz", {"kernel": {"name": "ema"}, "engine": {"name": "ski", "degree": 15}}, causal=False)


def test_a_truncated_average_with_slow_decays_keeps_its_digits() -> None:
    """It is the difference of two averages that are much larger."""
    x, weight = 1 + noise(1, 20_000, torch.float32), torch.rand(CHANNELS, 2)
    log_decay = torch.full((CHANNELS, 2), -1e-6)
    low = ema_scan(x, weight, log_decay, truncation=100)
    exact = ema_scan(x.double(), weight.double(), log_decay.double(), truncation=100)
    assert (low - exact).abs().max() / exact.abs().max() < 1e-6


def test_a_short_chunk_after_a_short_text_costs_no_more_than_the_text() -> None:
    """Although the convolution reaches 2**42 tokens back."""
    mixer = TCNMixer(4, kernel_size=5, dilation=2, depth=40).double()
    x = noise(1, 12, torch.float64)[..., :4]
    state, parts = mixer.init_state(1), []
    for chunk in x.split([3, 2, 1, 5, 1], dim=1):
        y, state = mixer.prefill(chunk, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), mixer(x))


@pytest.mark.parametrize("name", ["toeplitz", "gtu", "hyena"])
def test_looking_ahead_without_gradients_keeps_those_of_the_stream(name: str) -> None:
    mixer = make(name, {"kernel": {"name": "rpe", "decay": 1.0}})
    x = noise(1, 1100)

    def gradients(look: bool) -> list[torch.Tensor]:
        _, state = mixer.prefill(x[:, :1024], mixer.init_state(1))
        if look:
            with torch.no_grad():
                mixer.step(x[:, 1024], state)
        y, _ = mixer.prefill(x[:, 1024:], state)
        return list(torch.autograd.grad(y.square().sum(), list(mixer.parameters())))

    torch.testing.assert_close(gradients(True), gradients(False))


def test_a_fixed_step_of_a_truncated_average_keeps_its_digits() -> None:
    """Two slow averages nearly cancel, the more the longer the text."""
    mixer = EMAMixer(4, truncation=50)
    mixer.kernel.alpha.data.fill_(-12.0)
    x = noise(1, 3000, torch.float32)[..., :4] + 1
    fixed = frozen(mixer)
    state: Any = fixed_start(mixer.init_state(1))
    y = x[:, 0]
    for token in x.unbind(1):
        y, state = fixed.step(token, state)
    with torch.no_grad():
        exact = copy.deepcopy(mixer).double()(x.double())[:, -1]
    torch.testing.assert_close(y.detach(), exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "options"), [(PreNormBlock, {"token_mixer": {"name": "ema"}}), (MegaBlock, {})])
def test_padding_does_not_enter_the_statistics_of_a_stream(kind: Any, options: dict[str, Any]) -> None:
    whole = kind(4, norm="batch", **options).train()
    streamed = copy.deepcopy(whole)
    x, mask = noise(1, 20, torch.float32)[..., :4], (torch.arange(20) >= 10)[None]
    whole(x, mask=mask)
    streamed.prefill(x, streamed.init_state(1), mask=mask)
    torch.testing.assert_close(dict(streamed.named_buffers()), dict(whole.named_buffers()))


def test_packed_rows_of_only_padding_pass_a_block() -> None:
    block = MegaBlock(8, query_size=4)
    seq_idx = torch.tensor([[0, 0, 0, 1, 1, 1]])
    assert block(torch.randn(1, 6, 8), mask=torch.zeros(1, 6), seq_idx=seq_idx).isfinite().all()


@pytest.mark.parametrize("name", ["ema", "lru", "s5"])
@pytest.mark.parametrize("length", [1, 20, 40])
def test_second_derivatives_of_a_frozen_scan(name: str, length: int) -> None:
    mixer = make(name, {}).requires_grad_(False)
    x = noise(1, length).requires_grad_()
    assert torch.autograd.gradgradcheck(mixer, (x[:, :, :CHANNELS],), fast_mode=True)
