"""torchrun -m torchcoll.pairs"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("pairs")
