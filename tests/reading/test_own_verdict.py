"""What a test says of itself counts, whatever its rows say."""

import json

import pytest
from made_nccl_tests import made_json

import torchcoll
from torchcoll.cli import main

ROWS = """\
# nThread 1 nGpus 4 minBytes 268435456
# Collective test starting: all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw  #wrong
   268435456      67108864     float     sum      -1  1187.29  226.09  339.14       0
"""


@pytest.mark.parametrize(
    ("footer", "says"),
    [
        (
            "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 338.81\n",
            "counts 3 wrong results, not in the rows shown",
        ),
        (
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.81 FAILED\n",
            "itself says Avg bus bandwidth : 1.81 FAILED",
        ),
        (
            "# Out of bounds values : 1 FAILED\n# Avg bus bandwidth    : 338.81 FAILED\n",
            "counts 1 wrong result, not in the rows shown",
        ),
    ],
)
def test_a_footer_that_says_failed_fails_the_run(footer, says, tmp_path, capsys):
    path = tmp_path / "all_reduce.log"
    path.write_text(ROWS + footer)
    assert main(["check", str(path), "--gate", "--fabric", "nvswitch-h100"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(f"FAIL nccl-tests {says}")
    wrong = "wrong" in says
    assert ("Next: run again with -c 1; do not use this machine until" in out) == wrong
    # The rows keep their times. They are not correct where nobody knows which are wrong.
    (result,) = torchcoll.load(path).results
    assert result.reported.time_ns == 1_187_290
    main(["show", str(path)])
    assert ("  correct" not in capsys.readouterr().out) == wrong


def test_a_footer_that_says_ok_passes(tmp_path, capsys):
    path = tmp_path / "all_reduce.log"
    path.write_text(ROWS + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 339.14\n")
    assert main(["check", str(path), "--gate", "--fabric", "nvswitch-h100"]) == 0
    assert capsys.readouterr().out.startswith("PASS ")


@pytest.mark.parametrize(
    ("name", "check", "says"),
    [
        ("out_of_bounds", {"count": 3}, "counts 3 wrong results, not in the rows shown"),
        (
            "average_bus_bandwidth",
            {"bandwidth": 1.8},
            "itself says average_bus_bandwidth: 1.8, okay: false",
        ),
    ],
)
def test_the_same_in_json(name, check, says, tmp_path, capsys):
    data = made_json([[10.0, 11.0], [10.0, 11.0]])
    data[name] = {**check, "okay": "false"}
    path = tmp_path / "all_reduce.json"
    path.write_text(json.dumps(data))
    main(["check", str(path)])
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(f"FAIL nccl-tests {says}")


OLD = (
    "# Collective test starting: all_reduce_perf\n"
    "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"
    "  268435456  67108864  float  sum  1187.29  226.09  339.14  {error}  1189.60  225.65  338.48 "
    " 2e-07\n"
)


def test_an_asterisk_is_a_failure(tmp_path, capsys):
    """Before 2.13 nccl-tests marks errors above its limit, which the count may not say."""
    path = tmp_path / "all_reduce.log"
    path.write_text(OLD.format(error="1e+03*") + "# Avg bus bandwidth    : 338.81\n")
    assert main(["check", str(path), "--gate", "--fabric", "nvswitch-h100"]) == 1
    assert "nccl-tests itself says error 1e+03* in line 3" in capsys.readouterr().out
    path.write_text(OLD.format(error="2e-07") + "# Avg bus bandwidth    : 338.81\n")
    assert main(["check", str(path), "--gate", "--fabric", "nvswitch-h100"]) == 0
