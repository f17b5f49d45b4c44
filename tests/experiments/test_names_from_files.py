"""A variable of a result file that somebody else made becomes no code of the reader's shell."""

import json
import subprocess
from itertools import chain

import pytest
from made_runs import in_turn, measured, run

from torchcoll.cli import main
from torchcoll.core.file import load_own, save
from torchcoll.core.variables import assignments, exports, name_of, named
from torchcoll.libraries.known_variables import names_file

CODE = "NCCL_X=1; touch PWN; NCCL_Y"


@pytest.fixture(autouse=True)
def folder(in_tmp_path):
    return in_tmp_path


def forged(path, variables):
    """A file whose check sums are left away, as a person writes it."""
    made = run(
        measured(1000),
        header={"argv": ["-n", "5"], "spec": {"collectives": ["all_reduce"]}},
        variables=variables,
    )
    save(made, path)
    lines = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        record.pop("crc", None)
        record.pop("line", None)
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
    return path


def run_in_bash(text, folder):
    """Whether the shell code of a stranger ran. The command itself is not found."""
    subprocess.run(["bash", "-c", text], cwd=folder, env={"PATH": "/usr/bin:/bin"}, check=False)
    return bool(list(folder.glob("PWN*")))


@pytest.mark.parametrize(
    "name",
    [
        CODE,
        "NCCL_X;touch PWN;",
        "NCCL_$(touch PWN)",
        "NCCL_`touch PWN`",
        "NCCL_X\ntouch PWN\n",
        "NCCL_X\ttouch PWN",
        "NCCL_X|touch PWN|",
        "NCCL_X[$(touch PWN)]",
        "NCCL_<(touch PWN)",
    ],
)
def test_the_command_of_a_file_has_no_code_in_it(folder, capsys, name):
    path = forged(folder / "f.jsonl", {name: "1", "NCCL_ALGO": "Ring"})
    assert main(["again", "f.jsonl", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "NCCL_ALGO=Ring" in printed
    assert not run_in_bash(printed, folder)
    problem = next(text for text in load_own(path).problems if "unusable field" in text)
    assert f"unusable field variables: {' '.join(name.split())[:60]}" in problem


@pytest.mark.parametrize("ending", ["html", "md"])
def test_the_page_has_no_code_in_its_commands(folder, ending):
    forged(folder / "f.jsonl", {CODE: "1", "NCCL_ALGO": "Ring", "FI_PROVIDER_PATH": "/opt/x"})
    assert main(["report", "f.jsonl", "-o", f"page.{ending}"]) == 0
    page = (folder / f"page.{ending}").read_text()
    assert "NCCL_ALGO=Ring" in page
    assert "touch PWN; NCCL_Y=" not in page
    assert "FI_PROVIDER_PATH=" not in page
    assert "Not set, for they name files or code: FI_PROVIDER_PATH." in page


def exported(folder, capsys, *cells):
    """What --export-env prints of two cells, the second of which is twice as fast."""
    case = {"backend": "nccl", "device": "cuda"}
    sides = [
        [run(measured(100 * ns + k, **case), **cell) for k in range(4)]
        for ns, cell in zip((2000, 1000), cells, strict=True)
    ]
    for number, made in enumerate(chain(*in_turn(*sides))):
        save(made, folder / "alg" / f"{number}.jsonl")
    assert main(["algorithms", "alg", "--export-env"]) == 0
    return capsys.readouterr()


def test_exported_variables_are_no_code(folder, capsys):
    cells = {"NCCL_ALGO": "Tree"}, {CODE: "1", "NCCL_Z": "2"}
    printed = exported(folder, capsys, *({"variables": cell} for cell in cells)).out
    assert "export NCCL_Z=2" in printed
    assert not run_in_bash(printed, folder)


def test_a_run_from_python_exports_no_code_either():
    made = run(measured(1000), variables={CODE: "1", "NCCL_ALGO": "Ring"})
    from torchcoll.questions.show.recipe import recipe_of

    assert recipe_of(made).text().startswith("NCCL_ALGO=Ring torchrun ")


def test_lines_of_a_comment_are_one_line(folder, capsys):
    """The label of a cell and the version of a library are in comments of the snippet."""
    auto = {"environment": {"libraries": {"nccl": "NCCL 2\ntouch PWN1"}}}
    ring = auto | {"variables": {"NCCL_ALGO": "Ring"}, "labels": {"cell": "ring\ntouch PWN2"}}
    assert not run_in_bash(exported(folder, capsys, auto, ring).out, folder)


LOADING = {
    "NCCL_NET_PLUGIN": "evil",
    "NCCL_TUNER_PLUGIN": "libevil.so",
    "FI_PROVIDER_PATH": "/tmp/evil",
    "UCX_MODULE_DIR": "evil",
    "UCX_GDB_COMMAND": "touch PWN",
    "I_MPI_PMI_LIBRARY": "evil",
    "ZE_ENABLE_ALT_DRIVERS": "evil",
    "HSA_TOOLS_LIB": "evil",
    "NCCL_TOPO_DUMP_FILE": "bashrc",
    "CCL_ROOT": "evil",
    "NCCL_NET": "../evil",
}
# Values of the samples of results/, and of the documentation of NCCL, UCX, libfabric and oneCCL.
SETTINGS = {
    "NCCL_ALGO": "allreduce:ring;broadcast:^tree",
    "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
    "NCCL_SOCKET_IFNAME": "^lo,docker",
    "NCCL_BUFFSIZE": "4194304",
    "UCX_TLS": "rc,cuda_copy",
    "UCX_NET_DEVICES": "mlx5_0:1",
    "FI_PROVIDER": "tcp;ofi_rxm",
    "CCL_ALLREDUCE": "recursive_doubling:0-8192;rabenseifner:8193-max",
    "I_MPI_FABRICS": "shm:ofi",
    "KMP_AFFINITY": "granularity=fine,compact,1,0",
    "OMP_NUM_THREADS": "4",
}


def test_variables_that_load_code_are_set_with_trust_alone(folder, capsys, monkeypatch):
    for name in LOADING:
        monkeypatch.delenv(name, raising=False)
    forged(folder / "f.jsonl", {**LOADING, **SETTINGS})
    assert main(["again", "f.jsonl", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert [name for name in LOADING if f"{name}=" in printed.out] == []
    assert [name for name in SETTINGS if f"{name}=" not in printed.out] == []
    assert (
        f"note: not set, for they name files or code: {', '.join(sorted(LOADING))}. If you trust "
        "the file: --trust"
    ) in printed.err
    assert main(["again", "f.jsonl", "--dry-run", "--trust"]) == 0
    printed = capsys.readouterr()
    assert [name for name in LOADING if f"{name}=" not in printed.out] == []
    assert "not set" not in printed.err


def test_a_variable_that_is_left_out_stays_as_the_shell_has_it(folder, capsys, monkeypatch):
    monkeypatch.setenv("FI_PROVIDER_PATH", "/opt/mine")
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "mine")
    forged(folder / "f.jsonl", {"FI_PROVIDER_PATH": "/tmp/evil"})
    assert main(["again", "f.jsonl", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("env -u NCCL_TUNER_PLUGIN torchrun ")


def test_an_exported_plugin_is_named(folder, capsys):
    forced = {"variables": {"NCCL_TUNER_PLUGIN": "x", "NCCL_ALGO": "Ring"}}
    assert (
        "torchcoll: warning: NCCL_TUNER_PLUGIN of the files may load code: look at the values "
        "before you source them"
    ) in exported(folder, capsys, {}, forced).err


def test_names_and_quoted_values():
    variables = named({"A_1": "x y", CODE: "1", "B": None, "1C": "2", "": "3", "É": "4"})
    assert assignments(variables) == "env -u B A_1='x y'"
    assert exports(named({"A": "$(touch PWN)"})) == ["export A='$(touch PWN)'"]
    with pytest.raises(ValueError, match="'A B' is no name of a variable"):
        name_of("A B")


def test_a_setting_is_no_file():
    assert not [name for name, value in SETTINGS.items() if names_file(name, value)]
    assert not [name for name, value in LOADING.items() if not names_file(name, value)]
    assert names_file("LD_AUDIT", "evil")
