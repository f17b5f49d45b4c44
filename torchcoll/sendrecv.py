"""torchrun -m torchcoll.sendrecv"""

from torchcoll.bench.main import main

if __name__ == "__main__":
    main("sendrecv")
