"""torchrun -m torchcoll.all_to_all, which is torchcoll.alltoall in torch's spelling"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("all_to_all")
