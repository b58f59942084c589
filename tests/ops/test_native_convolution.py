"""The long convolution in C gives the values and gradients of the dense matrix, and touches no memory but its own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.compiler import find_compiler
from lagwise.mixers.toeplitz import GTU
from lagwise.ops import native, toeplitz_product, toeplitz_reference
from lagwise.ops.native import library
from lagwise.ops.toeplitz import gated_product, spectral

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("_compiled", "uninitialised_is_nan")]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


@pytest.fixture
def _compiled() -> None:
    if not native.available():
        pytest.skip("no C compiler here")


@contextlib.contextmanager
def without_loops() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "serves", lambda *_, **__: False)
        yield


def with_gradients(function, *inputs: Tensor, weight: Tensor) -> list[Tensor]:
    inputs = tuple(t.detach().requires_grad_() for t in inputs)
    y = function(*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, weight.to(y.dtype))]


def assert_near(got: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Within a share of the largest value."""
    for ours, exact in zip(got, expected, strict=True):
        assert ours.shape == exact.shape
        assert (ours.double() - exact.double()).abs().max() <= tolerance * exact.abs().max()


def dense(causal: bool):
    return lambda x, taps: toeplitz_reference(x, taps, causal=causal)


def fft(causal: bool, engine: str = "fft"):
    return lambda x, taps: toeplitz_product(x, taps, causal=causal, engine=engine)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("batch", "length", "channels", "n_taps", "causal"),
    [
        (1, 1, 8, 1, True),
        (2, 2, 16, 3, False),
        (1, 7, 16, 7, True),
        (3, 67, 17, 67, True),  # a prime length, a channel more than a vector
        (2, 97, 31, 200, True),  # more taps than tokens
        (1, 101, 48, 40, True),
        (2, 89, 20, 177, False),
        (3, 240, 16, 41, False),
        (2, 131, 9, 401, False),
        (1, 300, 33, 300, True),  # a radix of 5
        (2, 190, 16, 190, True),  # and of 3
    ],
)
def test_values_and_gradients_of_the_dense_matrix(
    batch: int, length: int, channels: int, n_taps: int, causal: bool, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(2, batch, length, channels).to(dtype)
    taps = torch.randn(channels, n_taps)
    got = with_gradients(fft(causal), x, taps, weight=weight)
    expected = with_gradients(dense(causal), x.double(), taps.double(), weight=weight)
    assert [t.dtype for t in got] == [dtype, dtype, torch.float32]
    assert_near(got, expected, TOLERANCE[dtype])


@pytest.mark.parametrize(("length", "n_taps", "causal"), [(1030, 1, True), (1000, 129, True), (990, 65, False)])
def test_frames_of_a_long_signal(length: int, n_taps: int, causal: bool) -> None:
    x, weight = torch.randn(2, 1, length, 17)
    taps = torch.randn(17, n_taps)
    assert spectral.plan_product(length, n_taps, 0, "overlap_save").frames > 1
    got = with_gradients(fft(causal, "overlap_save"), x, taps, weight=weight)
    expected = with_gradients(dense(causal), x.double(), taps.double(), weight=weight.double())
    assert_near(got, expected, 2e-6)


@pytest.mark.parametrize(("length", "n_taps"), [(257, 66), (501, 300)])
def test_parts_of_many_taps(length: int, n_taps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral, "_PART", 64)
    x, weight = torch.randn(2, 3, length, 20)
    taps = torch.randn(20, n_taps)
    assert spectral.plan_product(length, n_taps, 0, "auto").parts > 1
    got = with_gradients(fft(True, "auto"), x, taps, weight=weight)
    expected = with_gradients(dense(True), x.double(), taps.double(), weight=weight.double())
    assert_near(got, expected, 2e-6)


@pytest.mark.parametrize("wanted", ["x", "taps"])
def test_one_gradient_alone(wanted: str) -> None:
    x, taps, weight = torch.randn(2, 60, 20), torch.randn(20, 60), torch.randn(2, 60, 20)
    (x if wanted == "x" else taps).requires_grad_()
    source = x if wanted == "x" else taps
    (got,) = torch.autograd.grad(fft(True)(x, taps), source, weight)
    (expected,) = torch.autograd.grad(dense(True)(x, taps), source, weight)
    assert_near([got], [expected], 2e-6)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_views_are_read_where_they_lie(dtype: torch.dtype) -> None:
    whole = torch.randn(4, 90, 64).to(dtype)
    taps, weight = torch.randn(20, 80), torch.randn(1, 1, 20).to(dtype)
    for x in (
        whole[1:3, 5:85, 30:50],
        whole[:, :80, :20].transpose(0, 1).contiguous().transpose(0, 1),
        whole[:1, :80, ::3][..., :20],
    ):
        ones = weight.expand(x.shape)
        got = with_gradients(fft(True), x, taps, weight=ones)
        expected = with_gradients(fft(True), x.contiguous(), taps, weight=ones.contiguous())
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    across = torch.randn(20, 2, 80).permute(1, 2, 0)  # channels apart
    assert torch.equal(fft(True)(across, taps), fft(True)(across.contiguous(), taps))


def test_the_number_of_threads_does_not_matter() -> None:
    x, taps, weight = torch.randn(3, 200, 70), torch.randn(70, 200), torch.randn(3, 200, 70)
    expected, before = with_gradients(fft(True), x, taps, weight=weight), torch.get_num_threads()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        try:
            got = with_gradients(fft(True), x, taps, weight=weight)
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_rows_and_channels_do_not_meet() -> None:
    """A row gives the same bits whatever is beside it."""
    x, taps = torch.randn(3, 100, 40), torch.randn(40, 100)
    alone = fft(True)(x[1:2], taps)
    x[0] *= 1e6
    x[2, 50] = torch.nan
    x[1, 50, 3] = torch.inf
    together = fft(True)(x, taps)[1]
    kept = torch.arange(40) != 3
    assert torch.equal(together[:, kept], alone[0][:, kept])


def unit(causal: bool, engine: str = "auto"):
    """A gated unit without its linear layers, of gate, value, taps and biases."""
    return lambda gate, value, taps, biases: gated_product(
        gate, value, taps, 0 if causal else taps.shape[1] // 2, engine, biases
    )


def plain_unit(causal: bool):
    def function(gate: Tensor, value: Tensor, taps: Tensor, biases: Tensor) -> Tensor:
        return F.silu(gate + biases[0]) * toeplitz_reference(F.silu(value + biases[1]), taps, causal=causal)

    return function


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("batch", "length", "channels", "n_taps", "causal", "engine"),
    [
        (1, 1, 5, 1, True, "fft"),
        (3, 67, 17, 67, True, "fft"),
        (2, 90, 32, 177, False, "fft"),
        (1, 1000, 17, 60, True, "overlap_save"),
    ],
)
def test_gated_units(
    batch: int, length: int, channels: int, n_taps: int, causal: bool, engine: str, dtype: torch.dtype
) -> None:
    gate, value, weight = torch.randn(3, batch, length, channels).to(dtype)
    taps, biases = torch.randn(channels, n_taps), torch.randn(2, channels)
    got = with_gradients(unit(causal, engine), gate, value, taps, biases, weight=weight)
    exact = (t.double() for t in (gate, value, taps, biases))
    assert_near(got, with_gradients(plain_unit(causal), *exact, weight=weight.double()), TOLERANCE[dtype])


@pytest.mark.parametrize("kernel", [{"name": "rpe", "hidden": 8, "layers": 1}, {"name": "frequency", "hidden": 8}])
@pytest.mark.parametrize("half", [False, True])
def test_a_mixer_gates_in_the_loops(kernel: dict[str, Any], half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer, x = GTU(70, causal=False, kernel=kernel), torch.randn(1, 470, 70, requires_grad=True)
    called, convolve = [], native.convolve
    inputs = [x, *mixer.parameters()]

    def results(mixer: Callable[[Tensor], Tensor]) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            y = mixer(x)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs)]

    monkeypatch.setattr(native, "convolve", lambda *given: called.append(given[3] is not None) or convolve(*given))
    ours = results(mixer)
    assert called == [True]
    with without_loops():
        expected = results(mixer)
    assert_near(ours, expected, 5e-2 if half else 1e-5)


DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include "convolution.c"

static long below(long n) { return rand() % n; }

static void *filled(long count, int bfloat16) { /* exactly as large as needed, at any address */
    float *x = malloc(count * sizeof(float));
    for (long i = 0; i < count; i++) x[i] = below(9) - 4;
    if (!bfloat16) return x;
    short *y = malloc(count * sizeof(short));
    for (long i = 0; i < count; i++) memcpy(y + i, (char *)(x + i) + 2, 2);
    free(x);
    return y;
}

int main(void) {
    const long odd[] = {1, 3, 5, 9, 15};
    for (int round = 0; round < 400; round++) {
        srand(round);
        const int gated = round % 2, framed = below(3);
        const long batch = 1 + below(3), channels = 1 + below(3 * LANES), b16 = below(2), threads = 1 + below(2);
        long n = odd[below(5)] << below(5), length = 1 + below(n), taps = 1 + below(length), origin = 0;
        long frames = 1, hop = length, start = 0, parts = 1;
        if (framed == 1) { /* overlapping frames */
            taps = 1 + below(n), origin = below(taps), hop = 2 * n - taps + 1, start = taps - 1 - origin;
            length = 1 + below(4 * n), frames = (length + hop - 1) / hop;
        } else if (framed == 2 && !gated) { /* parts of the taps */
            hop = start = n, length = 1 + below(4 * n), taps = 1 + below(length);
            frames = (length + n - 1) / n, parts = (taps + n - 1) / n;
        } else if (2 * taps - 1 <= length) {
            origin = taps - 1, taps = 2 * taps - 1;
        }
        const sizes s = {batch, length, channels, taps, origin, n, frames, hop, start, parts, b16, threads};
        const long count = batch * length * channels, groups = (channels + LANES - 1) / LANES;
        void *of[6];
        for (int i = 0; i < 6; i++) of[i] = filled(count, b16);
        signals x;
        signal *each = (signal *)&x;
        for (int i = 0; i < 6; i++)
            each[i] = (signal){!gated && (i == 1 || i == 5) ? NULL : of[i], length * channels, channels};
        if (!gated && !below(3)) x.value_grad.data = NULL;
        float *t = filled(taps * channels, 0), *taps_grad = filled(taps * channels, 0), *roots = filled(2 * n, 0);
        float *biases = aligned_alloc(BYTES, 2 * groups * BYTES), *bias_grads = malloc(2 * groups * BYTES);
        float *scratch = aligned_alloc(BYTES, threads * convolution_scratch(&s) * BYTES);
        memset(biases, 0, 2 * groups * BYTES);
        convolution_roots(roots, n);
        convolve(&s, &x, t, biases, roots, scratch);
        convolve_gradients(&s, &x, t, biases, gated || below(3) ? taps_grad : NULL, bias_grads, roots, scratch);
        for (int i = 0; i < 6; i++) free(of[i]);
        free(t), free(taps_grad), free(roots), free(biases), free(bias_grads), free(scratch);
    }
    puts("done");
}
"""


@pytest.mark.slow
def test_no_memory_but_its_own_is_touched(tmp_path: Path) -> None:
    """The address and undefined-behaviour sanitisers find nothing for 400 sets of random sizes."""
    compiler = find_compiler()
    assert compiler is not None
    source, program = tmp_path / "driver.c", tmp_path / "driver"
    source.write_text(DRIVER, encoding="utf-8")
    flags = ["-O1", "-g", "-march=native", "-fopenmp", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    folder = Path(library.__file__).parent
    made = subprocess.run(
        [*compiler, *flags, f"-I{folder}", str(source), "-o", str(program), "-lm"], capture_output=True, text=True
    )
    if "asan" in made.stderr and made.returncode:
        pytest.skip("the compiler has no sanitisers here")
    assert made.returncode == 0, made.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
