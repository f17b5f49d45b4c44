"""torchrun -m torchcoll.all_gather, which is torchcoll.allgather in torch's spelling"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("all_gather")
