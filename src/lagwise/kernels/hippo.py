"""The initial values of S4 and related state spaces: the HiPPO matrix for Legendre polynomials, and its spectrum."""

from __future__ import annotations

import functools

import numpy as np


@functools.cache
def hippo_legs(modes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The HiPPO-LegS matrix of 2 * modes states as a normal matrix plus one of rank 1, in the basis that diagonalises
    the normal one.

    Formula: with N = 2 modes, ``A_ij = -sqrt((2i + 1)(2j + 1))`` below the diagonal, ``-(i + 1)`` on it, 0 above, and
    ``p_i = sqrt(i + 1/2)``, the matrix ``A + p p'`` is -1/2 plus a skew-symmetric one, so that ``V* (A + p p') V =
    diag(-1/2 + j w)``. The input is ``b_i = sqrt(2i + 1)``.

    Returns:
        The w > 0 in descending order, and ``V* p`` and ``V* b`` for the same half of the basis; the other half is their
        conjugate.

    Source: Gu et al. 2022 (S4), appendix C; Gu et al. 2022 (S4D), §4.
    """
    states = np.arange(2 * modes)
    p, b = np.sqrt(states + 0.5), np.sqrt(2 * states + 1.0)
    matrix = -np.tril(np.outer(b, b), -1) - np.diag(states + 1.0)
    skew = matrix + np.outer(p, p) + 0.5 * np.eye(2 * modes)
    frequencies, basis = np.linalg.eigh(-1j * skew)  # Hermitian: real values, in ascending order
    half = slice(2 * modes - 1, modes - 1, -1)
    own = basis[:, half].conj().T
    return frequencies[half], own @ p, own @ b
