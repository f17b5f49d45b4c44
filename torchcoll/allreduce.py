"""torchrun -m torchcoll.allreduce"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("all_reduce")
