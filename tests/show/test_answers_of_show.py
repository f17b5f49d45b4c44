"""The next step of two backends, and the answer and the errors of a pivot."""

from pathlib import Path

from handmade import case, result, run

import torchcoll
from torchcoll.cli import main


def test_two_backends_of_a_folder_are_compared_next(capsys):
    folder = Path("results/gloo-oneccl-2ranks")
    main(["show", str(folder)])
    next_step = f"Next: torchcoll compare backend:gloo={folder} backend:ccl={folder}\n"
    assert next_step in capsys.readouterr().out
    main(["show", str(folder / "run-1.jsonl")])
    assert "Next: torchcoll compare backend:gloo=FILE backend:ccl=FILE\n" in capsys.readouterr().out


def test_a_pivot_begins_with_the_answer_of_show(capsys):
    """Ten cases of the run are bimodal, which only the answer says here."""
    path = "results/gloo-oneccl-2ranks/run-1.jsonl"
    main(["show", path])
    answer = capsys.readouterr().out.partition("\n\n")[0]
    assert "bimodal" in answer
    main(["show", path, "--view", "pivot:backend"])
    assert capsys.readouterr().out.startswith(answer)


def test_a_label_is_suggested_for_an_unknown_key_of_a_pivot(capsys):
    assert main(["show", "results/h200-8gpu-kernels/nvidia.jsonl", "--view", "pivot:kernel"]) == 2
    assert "Did you mean label=kernel?" in capsys.readouterr().err


def test_show_names_a_slow_rank_beside_what_was_measured(capsys):
    """Rank 2 takes 1.3 times as long as three others in all calls; of two ranks none is named."""
    times = [[100_000] * 20, [101_000] * 20, [130_000] * 20, [100_000] * 20]
    of_ranks = [result(4, case=case(size_bytes=8 << n), time_ns={"host": times}) for n in range(3)]
    torchcoll.show(run(*of_ranks, ranks=4))
    answer = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    assert "rank 2 (vm) is the slowest, 30 % above the median of the others" in answer
    two = result(2, time_ns={"host": [[100_000] * 20, [130_000] * 20]})
    torchcoll.show(run(two, ranks=2))
    assert "is the slowest" not in capsys.readouterr().out
