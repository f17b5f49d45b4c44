"""The name of a rank that is nearest to the message wins over the label of an outer launcher."""

import pytest

from torchcoll.cli import main

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 90, in step',
    "    x = tokenizer(batch)",
    "ValueError: bad sample 7",
)


@pytest.mark.parametrize("label", ["1: ", "[1,1]<stderr>: ", "[1] "])
def test_srun_labels_nodes_where_torchrun_runs_below_it(label, tmp_path, capsys):
    other = label.replace("1: ", "0: ").replace("[1,1]", "[1,0]").replace("[1] ", "[0] ")
    steps = [f"{each}step {n} loss 0.{n}" for n in range(20) for each in (other, label)]
    path = tmp_path / "slurm-4711.out"
    path.write_text("\n".join([*steps, *(f"{label}[rank11]: {line}" for line in TRACEBACK)]) + "\n")
    assert main(["postmortem", str(path)]) == 0
    assert capsys.readouterr().out.startswith("rank 11 ended with ValueError: bad sample 7")


def test_labels_of_ranks_stay_ranks(tmp_path, capsys):
    steps = [f"{rank}: step {n}" for n in range(20) for rank in range(4)]
    path = tmp_path / "slurm-4711.out"
    path.write_text("\n".join([*steps, *(f"3: [rank3]: {line}" for line in TRACEBACK)]) + "\n")
    assert main(["postmortem", str(path)]) == 0
    assert capsys.readouterr().out.startswith("rank 3 ended with ValueError: bad sample 7")
