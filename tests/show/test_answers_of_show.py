"""The next step of two backends, and the answer and the errors of a pivot."""

from pathlib import Path

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
