"""torchrun -m torchcoll.all_gather_v, which is torchcoll.allgatherv in torch's spelling"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("all_gather_v")
