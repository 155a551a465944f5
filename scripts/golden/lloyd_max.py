"""Prints the tables of csrc/coding/lloyd_max.cpp: the best quantizers of a standard normal value.

Lloyd (1982), Max (1960): every centroid is the mean of its cell, every bound the middle between two
centroids. The positive half is solved by Newton's method in float64, starting from the asymptotic
point density (the normal density to the power 1/3); the residual falls below 1e-11.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np


def centroids(bits: int) -> list[float]:
    """The positive centroids of the quantizer with 2**bits levels, ascending."""
    half = 2 ** (bits - 1)
    compander = NormalDist(0, math.sqrt(3))
    c = np.array([compander.inv_cdf(0.5 + (k + 0.5) / (2 * half)) for k in range(half)])
    for _ in range(100):
        bounds = np.concatenate([[0.0], (c[:-1] + c[1:]) / 2])
        density = np.append(np.exp(-(bounds**2) / 2) / math.sqrt(2 * math.pi), 0.0)
        tail = np.append([math.erfc(b / math.sqrt(2)) / 2 for b in bounds], 0.0)
        mass = tail[:-1] - tail[1:]
        mean = (density[:-1] - density[1:]) / mass
        # Derivatives of the mean of a cell by its lower and its upper bound.
        lower = density[:-1] * (mean - bounds) / mass
        upper = np.append(density[1:-1] * (bounds[1:] - mean[:-1]) / mass[:-1], 0.0)
        lower[0] = 0.0  # the bound at 0 is fixed
        jacobian = np.diag((lower + upper) / 2 - 1)
        jacobian += np.diag(upper[:-1] / 2, 1) + np.diag(lower[1:] / 2, -1)
        step = np.linalg.solve(jacobian, mean - c)
        c = c - step
        if np.abs(step).max() < 1e-12:
            break
    assert np.abs(mean - c).max() < 1e-11
    return [float(value) for value in c]


def main() -> None:
    """Print the tables for 1 to 8 bits."""
    for bits in range(1, 9):
        numbers = [f"{np.float32(value):.9g}f," for value in centroids(bits)]
        print(f"    // {bits} bits")
        for i in range(0, len(numbers), 7):
            print("    " + " ".join(numbers[i : i + 7]))


if __name__ == "__main__":
    main()
