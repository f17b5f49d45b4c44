"""How often ``torchcoll FILE`` is right at the first try, over the inputs of tests/reading/threads.

python tests/benchmarks/first_try.py > results/benchmarks/first-try.txt
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from first_tries import differences, read_truth


def main() -> None:
    truths = read_truth()
    right, wrong, slowest = 0, 0, 0.0
    for truth in truths:
        begun = time.process_time()
        found, is_wrong = differences(truth)
        slowest = max(slowest, time.process_time() - begun)
        right += not found
        wrong += is_wrong
        print(f"{'right' if not found else 'WRONG' if is_wrong else 'not right':9} {truth['file']}")
        for text in found:
            print(f"          {text}")
    share = right / len(truths)
    print(f"\n{right} of {len(truths)} right at the first try ({share:.0%}), {wrong} wrong figures")
    print(f"slowest: {slowest:.2f} s of CPU time, with a second reading by the check")


if __name__ == "__main__":
    main()
