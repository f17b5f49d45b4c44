"""torchrun -m torchcoll.allgatherv"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("all_gather_v")
