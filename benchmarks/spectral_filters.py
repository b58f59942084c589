"""How many states the fixed filters of spectral state spaces (STU) need, all of them together in one state space.

All filters of Agarwal et al. 2023 (`lagwise.kernels.spectral`) are replaced by one state space with one input and an
output for each filter. Its poles are real, because the filters are integrals over real poles in (-1, 1): a greedy
choice (simultaneous orthogonal matching pursuit) from a grid that is logarithmic in 1 - pole. Over the filters' span,
the output of each filter then differs from the exact one by at most ``gain`` times the largest output that the exact
one can have for inputs of that size. STU's filters are as long as its texts; what the state space adds for a longer
text, at lags up to eight spans, is given in the same unit as ``beyond``.

The same state space is written in two forms. The diagonal one has the poles themselves; its output weights are large
and cancel, so that it needs float64. The orthogonal one has the orthonormal basis Q of the poles' responses as its
outputs, ``Q_{l+1} = Q_l A``; it needs a dense matrix A and works in float32.

    python benchmarks/spectral_filters.py --out benchmarks/results/spectral-filters.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lagwise.kernels.spectral import hankel_filters
from lagwise.progress import progress_bar
from lagwise_papers.bench.timing import save_results

Array = np.ndarray


def responses(poles: Array, span: int) -> Array:
    """Impulse responses ``pole**l`` of unit norm, ``(span, poles)``."""
    lags = np.arange(span)
    values = np.sign(poles) ** lags[:, None] * np.abs(poles) ** lags[:, None]
    return values / np.linalg.norm(values, axis=0)


def chosen_poles(filters: Array, poles: Array, most: int) -> list[int]:
    """Indices of the poles whose responses best explain what the earlier ones leave, for all filters together.

    Shapes: filters ``(span, filters)`` of unit norm; poles ``(n,)``.
    """
    left, candidates, chosen = filters.copy(), responses(poles, len(filters)), []
    for _ in range(most):
        norms = np.linalg.norm(candidates, axis=0)
        usable = norms > 1e-7  # others are in the span of those chosen, up to rounding
        gains = np.where(usable, np.linalg.norm(candidates.T @ left, axis=1) / np.maximum(norms, 1e-7), 0)
        best = int(gains.argmax())
        chosen.append(best)
        direction = candidates[:, best] / norms[best]
        left -= np.outer(direction, direction @ left)
        candidates -= np.outer(direction, direction @ candidates)
    return chosen


def impulse_response(transition: Array, start: Array, outputs: Array, span: int) -> Array:
    """The outputs of a state space after an impulse, step by step in the dtype of its matrices: ``(span, filters)``."""
    state, rows = start, []
    for _ in range(span):
        rows.append(state @ outputs)
        state = state @ transition if transition.ndim == 2 else state * transition
    return np.stack(rows)


def fitted(filters: Array, poles: Array) -> dict[str, Any]:
    """Errors of the best state space with these poles, in two forms, relative to filters of unit norm."""
    span = len(filters)
    basis, _ = np.linalg.qr(responses(poles, span))
    scale = 1 / np.linalg.norm(np.abs(poles) ** np.arange(span)[:, None], axis=0)
    diagonal = np.linalg.lstsq(responses(poles, span), filters, rcond=1e-14)[0]
    step = np.linalg.lstsq(basis[:-1], basis[1:], rcond=None)[0]
    forms = {"diagonal": (poles, scale, diagonal), "orthogonal": (step, basis[0], basis.T @ filters)}
    row: dict[str, Any] = {"states": len(poles), "largest_weight": float(np.abs(diagonal).max())}
    later = impulse_response(poles, scale, diagonal, 8 * span)[span:]
    row["beyond"] = float((np.abs(later).sum(0) / np.abs(filters).sum(0)).max())
    for name, (transition, start, outputs) in forms.items():
        for dtype in (np.float64, np.float32):
            made = impulse_response(transition.astype(dtype), start.astype(dtype), outputs.astype(dtype), span)
            error = made - filters
            row[f"{name} {np.dtype(dtype).name}"] = {
                "norm": float(np.linalg.norm(error, axis=0).max()),
                "gain": float((np.abs(error).sum(0) / np.abs(filters).sum(0)).max()),
            }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", default="1024,2048", help="lags of the filters, separated by commas")
    parser.add_argument("--filters", type=int, default=24)
    parser.add_argument("--states", default="16,20,24,28,32,36,40,48", help="numbers of states, separated by commas")
    parser.add_argument("--candidates", type=int, default=400, help="poles to choose from")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    sizes = [int(size) for size in options.states.split(",")]
    results = {}
    for span in progress_bar([int(span) for span in options.spans.split(",")], desc="spans", show=True):
        filters = hankel_filters(span, options.filters).T
        filters = filters / np.linalg.norm(filters, axis=0)
        poles = 1 - np.geomspace(0.1 / span, 1.9, options.candidates)
        chosen = chosen_poles(filters, poles, max(sizes))
        results[span] = [fitted(filters, poles[chosen[:size]]) for size in sizes]
        for row in results[span]:
            print(span, row)
    save_results(options.out, " ".join(["python", *sys.argv]), results)


if __name__ == "__main__":
    main()
