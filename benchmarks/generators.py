"""Time the generators of Long Range Arena's data: `python benchmarks/generators.py [--blocks 4] [--out FILE]`.

One process makes some blocks of each kind, as `lagwise data` does in one process per core. Reported are CPU
milliseconds per row and the minutes in which two cores make a whole data set, which excludes the writing of files.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from lagwise.analysis.timing import save_results
from lagwise.data.generated import listops_block, pathfinder_block
from lagwise.data.listops import BLOCK as EXPRESSIONS
from lagwise.data.pathfinder import BLOCK as IMAGES

_CORES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=4, help="blocks of 256 rows of each kind (4)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/generators-cpu.json"))
    given = parser.parse_args()
    results = {}
    for name, make, options, block, whole in (
        ("lra-listops", listops_block, (), EXPRESSIONS, 100_000),
        ("lra-pathfinder", pathfinder_block, (32,), IMAGES, 200_000),
        ("lra-path-x", pathfinder_block, (128,), IMAGES, 200_000),
    ):
        make(1, 0, *options)  # imports and caches
        begun = time.process_time()
        for number in range(given.blocks):
            make(0, number, *options)
        row = (time.process_time() - begun) / (given.blocks * block)
        minutes = row * whole / _CORES / 60
        results[name] = {"rows": whole, "cpu_milliseconds_per_row": 1e3 * row, "minutes_on_two_cores": minutes}
        print(f"{name:<15} {1e3 * row:6.2f} ms per row, {whole:,} rows in {minutes:.1f} min", flush=True)
    save_results(given.out, f"python benchmarks/generators.py {' '.join(sys.argv[1:])}".rstrip(), results)


if __name__ == "__main__":
    main()
