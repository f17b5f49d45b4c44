"""torchrun -m torchcoll.reduce"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("reduce")
