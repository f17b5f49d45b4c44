"""torchrun -m torchcoll.barrier"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("barrier")
