"""torchrun -m torchcoll.all_to_all_v, which is torchcoll.alltoallv in torch's spelling"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("all_to_all_v")
