"""``torchcoll again ENTRY``, shares of the limit, and the check of a proposed entry."""

import re
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import measured, run

from torchcoll.cli import main
from torchcoll.core.plausibility import doubts_of
from torchcoll.questions.check.limit_share import compared_shares, largest, limit_shares
from torchcoll.questions.check.published import publication_named, publications, run_of
from torchcoll.questions.show.recipe import recipe_of

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("entry", [publication.id for publication in publications()])
def test_every_entry_has_a_command_and_is_possible(entry):
    publication = publication_named(entry)
    made = run_of(publication)
    assert not any(doubts_of(made))
    recipe = recipe_of(made)
    assert (recipe.ranks, recipe.hosts) == (publication.ranks, publication.hosts)
    words = recipe.command()
    per_host = words[words.index("--nproc-per-node") + 1]
    assert int(per_host) * publication.hosts == publication.ranks
    sizes = {size for _, size in publication.figures}
    assert len(words[words.index("--sizes") + 1].split(",")) == len(sizes)


def test_an_entry_without_its_hardware_prints_what_can_be_known(capsys):
    assert main(["again", "azure-nd-h100-v5"]) == 4
    out, err = capsys.readouterr()
    assert "Microsoft Azure, 2024-09-24: https://github.com/Azure/" in out
    assert "plausible: 478.9 GB/s busbw in all_reduce 8G, 98 % of" in out
    assert "command: torchrun --nproc-per-node 8 -m torchcoll.allreduce --sizes 1M,16M," in out
    assert "no nccl on cuda" in err


def gpu_run(name, ranks, busbw_gbps):
    """all_reduce of 1 GiB: t = S / busbw x 2 (n - 1) / n."""
    time_ns = (1 << 30) / busbw_gbps * 2 * (ranks - 1) / ranks
    case = measured(time_ns, size_bytes=1 << 30, ranks=ranks, device="cuda", backend="nccl")
    made = run(case, ranks=ranks)
    made.members = [
        {"rank": rank, "host": "h", "device": "cuda", "device_name": name} for rank in range(ranks)
    ]
    return made


def test_shares_of_the_limit_by_hand():
    """A ring on A100 has 12 links x 20 GB/s (NCCL topo.h): 240 GB/s."""
    a100 = gpu_run("NVIDIA A100-SXM4-80GB", 8, 228.0)
    share = largest(limit_shares(a100))
    assert (share.case, share.limit_gbps) == ("all_reduce 1G", pytest.approx(240.0))
    assert share.text == "95 % of 240 GB/s"
    (measured_case,) = a100.results
    group = replace(measured_case.case, group="pair/0-1")
    for changes in ({"status": "wrong"}, {"ranks": 4}, {"case": group}):
        assert limit_shares(replace(a100, results=[replace(measured_case, **changes)])) == {}
    entry = publication_named("azure-nd-h100-v5")  # 1 GiB: 466.35 GB/s
    text = compared_shares(run_of(entry), a100, entry.linked)
    assert re.fullmatch(
        r"share of the limit in all_reduce 1G: 95 % of 490.3 GB/s in the file, "
        r"95 % of 240 GB/s in the new runs",
        text,
    )


def test_no_share_without_a_limit():
    assert compared_shares(run_of(publication_named("azure-nd-h100-v5")), run(measured(1000))) == ""


@pytest.fixture
def propose(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "entry"
    folder.mkdir()

    def check(about, file="h200-8gpu-kernels/nvidia.jsonl"):
        shutil.copy(RESULTS / file, folder / "run.jsonl")
        (folder / "about.md").write_text(about)
        monkeypatch.setattr(sys, "argv", ["propose.py", str(folder)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(RESULTS / "published" / "propose.py"), run_name="__main__")
        return ended.value.code, capsys.readouterr().out

    return check


ABOUT = """# An entry

- **id**: site-h200
- **machine**: eight H200
- **gpu**: H200
- **hosts**: 1
- **network**: NVSwitch
- **library**: nccl
- **versions**: unknown
- **who**: somebody
- **date**: 2025-01-02
- **source**: https://example.org/results
"""


def test_a_proposed_entry(propose):
    code, text = propose("")
    assert code == 1
    missing = set(re.findall(r"^missing: (\w+)\.", text, re.MULTILINE))
    assert missing == {"id", "machine", "network", "library", "versions", "who", "source", "date"}
    code, text = propose(ABOUT)
    assert code == 0
    assert "\nsite-h200,all_reduce,1048576,unknown," in text
    code, text = propose(ABOUT.replace("site-h200", "aws-p5").replace("2025-01-02", "soon"))
    assert (code, text.count("\n")) == (1, 2) and "aws-p5 exists already" in text
    assert "date: soon, expected" in text


def test_an_impossible_entry_is_refused(propose):
    about = ABOUT.replace("H200", "A100")
    code, text = propose(about, "a100-8gpu-baseline/curve.jsonl")
    assert code == 1
    assert text.startswith("implausible: all_reduce 1048576 bytes:")
