"""torchrun -m torchcoll.pairs"""

from torchcoll.bench.main import main
from torchcoll.questions.pairs.pairs_run import run_pairs

if __name__ == "__main__":
    main(action=run_pairs)
