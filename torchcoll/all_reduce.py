"""torchrun -m torchcoll.all_reduce, which is torchcoll.allreduce in torch's spelling"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("all_reduce")
