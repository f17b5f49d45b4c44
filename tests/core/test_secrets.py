"""What is masked, what stays readable, and that no secret is in anything that is written."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from torchcoll.cli import main
from torchcoll.core.variables import is_secret, kept_variables, masked, masked_labels, masked_words


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_MY_TOKEN",
        "SLURM_PWD",
        "FI_PW",
        "UCX_BEARER",
        "LSB_PIN",
        "PBS_SESSION",
        "PMIX_SIGNATURE",
        "NCCL_APIK",
        "GLOO_ACCESS_KEY",
        "SLURM_JWT",
        "OMPI_PASSPHRASE",
        "SLURM_JOB_COMMENT",
        "LSB_SUB_CMD",
        "OMPI_COMMAND",
        "OMPI_ARGV",
        "I_MPI_PIN_TOKEN",
        "FI_AUTH_KEY",
        "NCCL_CREDENTIALS",
        "TORCH_COOKIE",
        "UCX_USERPWD",
    ],
)
def test_names_that_are_masked(name):
    assert is_secret(name) and is_secret(name.lower())


@pytest.mark.parametrize(
    "name",
    [
        "I_MPI_PIN",
        "I_MPI_PIN_DOMAIN",
        "I_MPI_PIN_ORDER",
        "CCL_WORKER_AFFINITY",
        "NCCL_IB_PKEY",
        "UCX_IB_PKEY",
        "UCX_IB_MKEY_BY_NAME_RESERVE",
        "NCCL_TOPO_FILE",
        "NCCL_GRAPH_MIXING_SUPPORT",
        "UCX_KEEPALIVE_INTERVAL",
        "FI_OPX_CREDITS",
        "OMP_PROC_BIND",
        "FI_X_PINNED",
        "I_MPI_HYDRA_TOPOLIB",
        "SLURM_JOB_NAME",
        "PMIX_SPIN",
        "NCCL_ALGO",
    ],
)
def test_names_that_change_how_a_collective_runs(name):
    assert kept_variables({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("user:pass@a-host", "***@a-host"),
        ("user:pass@[fe80::1]:80", "***@[fe80::1]:80"),
        ("http://user:pass@proxy:80/x", "http://***@proxy:80/x"),
        ("https://ghp_1@github.com/a", "https://***@github.com/a"),
        ("user:p@ss@host", "***@host"),
        ("a=1,proxy=user:pass@host", "a=1,proxy=***@host"),
        ("http://u:p@h/?a=b=c", "http://***@h/?a=b=c"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("run --api-token=abc now", "run --api-token=*** now"),
        # What is no secret, and looks a little like one.
        ("image:tag@sha256:9f86d081884c7d65", "image:tag@sha256:9f86d081884c7d65"),
        ("prte-n0-12@0.0;tcp4://10.0.0.1:39999", "prte-n0-12@0.0;tcp4://10.0.0.1:39999"),
    ],
)
def test_texts(text, shown):
    """Of a text the secret alone is masked; as a value of a variable it is withheld."""
    assert masked(text) == shown
    assert kept_variables({"NCCL_X": text}) == {"NCCL_X": "***"}


@pytest.mark.parametrize("host", ["h", "a-b", "a.b", "1host", "[::1]", "[::1]:22"])
def test_passwords_before_every_form_of_host(host):
    assert masked(f"scp -r out alice:hunter2@{host}:/scratch") == f"scp -r out ***@{host}:/scratch"
    assert masked(f"from alice:hunter2@{host}") == f"from ***@{host}"


@pytest.mark.parametrize(
    "value",
    [
        "hunter2Xy9",  # mixed as a password
        "9f3b7c1d5e8a2046f1b9d3c7e5a80642",  # a key without a prefix
        "scott/tiger@db",
        "db.example:5432:runs:joe:tulips",
        "ALL,DB_PASS=tulips",
        "two words",
        "tulips!",
        "token:tulips",
        "a" * 5000,
    ],
)
def test_values_without_a_documented_form(value):
    assert kept_variables({"UCX_X": value}) == {"UCX_X": "***"}


def test_labels_that_only_sound_alike_stay_apart():
    labels = {"pin": "on", "tokens": "4096", "key": "a", "api_token": "x1", "proxy": "http://a:b@c"}
    kept = {"pin": "on", "tokens": "4096", "key": "a", "api_token": "***", "proxy": "http://***@c"}
    assert masked_labels(labels) == kept


def test_command_lines():
    words = ["-x", "NCCL_MY_TOKEN=s", "--token", "t", "--label=a_secret=u", "--seed", "3"]
    shown = ["-x", "NCCL_MY_TOKEN=***", "--token", "***", "--label=a_secret=***", "--seed", "3"]
    assert masked_words(words) == shown


CANARIES = {
    **{f"NCCL_{word}": "" for word in ("TOKEN", "MY_KEY", "SECRET", "PASSWORD", "X_PWD", "PW")},
    **{f"UCX_{word}": "" for word in ("BEARER", "PIN", "SESSION", "SIGNATURE", "APIK", "CRED")},
    **{f"FI_{word}": "" for word in ("AUTH", "JWT", "COOKIE", "PASSPHRASE", "PRIVATE_KEY")},
    **{name: "" for name in ("SLURM_JOB_COMMENT", "LSB_SUB_CMD", "OMPI_COMMAND", "OMPI_ARGV")},
    "NCCL_PROXY": "http://user:{}@proxy",
    "GLOO_URL": "https://{}@host/x",
    "UCX_STORE": "user:{}@host",
    "TORCH_OPTIONS": "--api-token={}",
}


def _canaries() -> tuple[dict[str, str], list[str]]:
    secrets = [f"canary{number:02}x" for number in range(len(CANARIES))]
    filled = zip(CANARIES.items(), secrets, strict=True)
    return {name: (form or "{}").format(secret) for (name, form), secret in filled}, secrets


def _all_text(folder) -> str:
    """What every file below holds, and how it is called."""
    files = [path for path in folder.rglob("*")]
    return "\n".join(
        str(path) + (path.read_text(errors="replace") if path.is_file() else "") for path in files
    )


def test_25_canaries_are_in_no_file_and_no_output(python, tmp_path):
    variables, secrets = _canaries()
    assert len(secrets) == 25
    words = [
        "-e",
        "1K",
        "-n",
        "3",
        "--label",
        "api_token=canaryLABELx",
        "--label",
        "a=u:canaryPASSx@h",
    ]
    done = subprocess.run(
        [python, "-m", "torchcoll.allreduce", *words, "--sizes", "8,bad"],
        cwd=tmp_path,
        env={**os.environ, **variables, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    stated = done.stdout + done.stderr
    done = subprocess.run(
        [python, "-m", "torchcoll.allreduce", *words],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    stated += done.stdout + done.stderr + _all_text(tmp_path)
    assert [one for one in (*secrets, "canaryLABELx", "canaryPASSx") if one in stated] == []
    result = next((tmp_path / "torchcoll-runs").iterdir())
    header = json.loads(result.read_text().splitlines()[0])
    assert set(CANARIES) <= set(header["environment"]["variables"])  # they were there to be kept


def test_secrets_of_a_matrix_are_not_in_its_folder(tmp_path, capfd):
    script = tmp_path / "run.sh"
    script.write_text('echo "torchcoll: $NCCL_MY_TOKEN $2"; exit 1\n')
    command = ["matrix", "-o", str(tmp_path / "m"), "--runs", "1"]
    command += ["--env", "NCCL_MY_TOKEN=canary1x,canary2x", "--axis", "proxy=http://u:canary3x@h"]
    words = ["--", "sh", str(script), "--api-token", "canary4x", "{proxy}"]
    assert main([*command, "--dry-run", *words]) == 0
    assert main([*command, *words]) == 1
    stated = "".join(capfd.readouterr())
    folder = tmp_path / "m"
    for log in (folder / "logs").iterdir():  # what the run itself says is its own
        assert "canary" in log.read_text()
        log.unlink()
    assert "canary" not in stated + _all_text(folder)
    assert "torchcoll: ***" in (folder / "manifest.jsonl").read_text()
    # It goes on: the cells are known by masked names.
    assert main([*command, *words]) == 1
    assert "without a result: 2 of 2" in capfd.readouterr().out
