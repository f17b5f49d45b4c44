"""torchrun -m torchcoll.hypercube"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("hypercube")
