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
            "values : 3 FAILED",
        ),
        ("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.81 FAILED\n", ": 1.81 FAILED"),
        (
            "# Out of bounds values : 1 FAILED\n# Avg bus bandwidth    : 338.81 FAILED\n",
            "Out of bounds values : 1 FAILED",
        ),
    ],
)
def test_a_footer_that_says_failed_fails_the_run(footer, says, tmp_path, capsys):
    path = tmp_path / "all_reduce.log"
    path.write_text(ROWS + footer)
    assert main(["check", str(path), "--gate", "--fabric", "nvswitch-h100"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("FAIL failed: nccl-tests itself says ") and says in out
    # The rows keep their times.
    (result,) = torchcoll.load(path).results
    assert result.reported.time_ns == 1_187_290


def test_a_footer_that_says_ok_passes(tmp_path, capsys):
    path = tmp_path / "all_reduce.log"
    path.write_text(ROWS + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 339.14\n")
    assert main(["check", str(path), "--gate", "--fabric", "nvswitch-h100"]) == 0
    assert capsys.readouterr().out.startswith("PASS ")


@pytest.mark.parametrize("name", ["out_of_bounds", "average_bus_bandwidth"])
def test_the_same_in_json(name, tmp_path, capsys):
    data = made_json([[10.0, 11.0], [10.0, 11.0]])
    data[name] = {"count": 3, "okay": "false"}
    path = tmp_path / "all_reduce.json"
    path.write_text(json.dumps(data))
    main(["check", str(path)])
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(f"FAIL failed: nccl-tests itself says {name}: 3, okay: false")


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
