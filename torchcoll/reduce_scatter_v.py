"""torchrun -m torchcoll.reduce_scatter_v, which is torchcoll.reducescatterv in torch's spelling"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("reduce_scatter_v")
