"""torchrun -m torchcoll.scatter"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("scatter")
