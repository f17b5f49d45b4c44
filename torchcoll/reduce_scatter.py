"""torchrun -m torchcoll.reduce_scatter, which is torchcoll.reducescatter in torch's spelling"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("reduce_scatter")
