#!/usr/bin/env python3
"""Makes synthetic-*.txt: python results/oneccl-cold-scaling/make.py [FOLDER]

No machine made these figures. The study prints none (they are in pictures); these are what its four
sentences say, in the format of the tool that it used: oneCCL's benchmark with -i 1 -w 0, two
processes in one job script, on 1 to 64 nodes of 12 ranks. The first call takes 2 s on 12 ranks and
5 % more with each doubling, which is invented; the second 1.15 times the first; the third 29000
(12 ranks) to 8000 (768 ranks) times less than the second; both processes alike within 1 %.
"""

from __future__ import annotations

import sys
from pathlib import Path

NODES = [1, 2, 4, 8, 16, 32, 64]
FIRST_US, EACH_DOUBLING = 2.0e6, 1.05
SECOND = 1.15
LEAST, MOST = 8000.0, 29000.0

TEXT = """\
# SYNTHETIC: made by results/oneccl-cold-scaling/make.py, no machine made these figures

options:
  processes:       {ranks}
  backend:         sycl
  iters:           1
  warmup_iters:    0
  iter_policy:     off
  buf_count:       1
  check:           off
  inplace:         0
  collectives:     allreduce

datatype: float32
reduction: sum

#------------------------------------------------------------
# Benchmarking: allreduce
# #processes: {ranks}
#------------------------------------------------------------

        #bytes   #elem_count  #repetitions   t_min[usec]   t_max[usec]   t_avg[usec]  stddev[%]
{rows}

# All done

"""


def process(doublings: int, of_job: int) -> str:
    first = FIRST_US * EACH_DOUBLING**doublings * (1 + 0.01 * of_job)
    second = SECOND * first
    share = doublings / (len(NODES) - 1)
    third = second / (MOST * (LEAST / MOST) ** share)
    calls = [first, second, *[third] * 8]
    rows = [f"{4 << k:14} {1 << k:13} {1:13} {us:13.2f} {us:13.2f} {us:13.2f} {0:10.2f}"
            for k, us in enumerate(calls)]  # fmt: skip
    return TEXT.format(ranks=12 * NODES[doublings], rows="\n".join(rows))


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for doublings, nodes in enumerate(NODES):
        text = process(doublings, 0) + process(doublings, 1)
        (folder / f"synthetic-{12 * nodes}ranks.txt").write_text(text)
