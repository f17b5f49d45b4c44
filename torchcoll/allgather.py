"""torchrun -m torchcoll.allgather"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("all_gather")
