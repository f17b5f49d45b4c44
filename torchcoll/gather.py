"""torchrun -m torchcoll.gather"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("gather")
