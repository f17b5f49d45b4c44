"""torchrun -m torchcoll.alltoall"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("all_to_all")
