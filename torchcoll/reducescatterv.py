"""torchrun -m torchcoll.reducescatterv"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("reduce_scatter_v")
