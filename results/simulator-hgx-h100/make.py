#!/usr/bin/env python3
"""Makes analytical.csv: python results/simulator-hgx-h100/make.py [FILE]

What ASTRA-sim's analytical network says of a ring of eight GPUs behind one switch, computed from
its formula; ASTRA-sim itself was not run. Of all_reduce of S bytes on n ranks: 2 (n - 1) messages
of S / n one after the other, each two hops (up and down) and its bytes. The switch is that of its
HGX-H100-validated.yml: 400 GB/s, which are GiB/s there, and 936.25 ns a hop.
"""

from __future__ import annotations

import sys
from pathlib import Path

RANKS, HOP_NS, BYTES_A_NS = 8, 936.25, 400 * 2**30 / 1e9
SIZES = [1 << power for power in range(20, 36, 2)]  # those of the measured table


def time_us(size_bytes: int) -> float:
    return 2 * (RANKS - 1) * (2 * HOP_NS + size_bytes / RANKS / BYTES_A_NS) / 1e3


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("analytical.csv")
    rows = [f"all_reduce,{RANKS},{size},{time_us(size):.3f}\n" for size in SIZES]
    out.write_text("collective,ranks,size (B),time (us)\n" + "".join(rows))
