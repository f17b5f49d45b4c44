"""What judging many runs reads: the rules of the package are the same for all of them."""

from __future__ import annotations

from collections import Counter

from torchcoll.questions.check import rules
from torchcoll.questions.check.judging import judge
from torchcoll.reading.registry import runs_in

TABLE = """# nThread 1 nGpus 1 minBytes 1024 maxBytes 1024 step: 2(factor)
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1   5368.7  200.00  350.00       0
# Out of bounds values : 0 OK
"""


def test_a_file_of_rules_is_read_once_for_all_runs(tmp_path, monkeypatch):
    path = tmp_path / "all_reduce.log"
    path.write_text(TABLE)
    texts: Counter[str] = Counter()
    read_toml = rules.toml_table

    def counting(text: str):
        texts[text] += 1
        return read_toml(text)

    monkeypatch.setattr(rules, "toml_table", counting)
    lines = {judge(runs_in(str(path), ranks=8)[0]).line for _ in range(3)}
    assert len(lines) == 1 and "the fabric is not recorded" in lines.pop()
    assert all(count == 1 for count in texts.values())
