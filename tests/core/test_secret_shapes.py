"""60 shapes of secrets, which were written after the code that masks them, and what must survive.

At first 0 of the 24 with a public prefix and 2 of the 36 others came through. Of each shape no part
of the secret may be left. All tokens are made up; a public prefix is put before the rest here, so
that no scanner takes this file for a leak.
"""

from __future__ import annotations

import shlex

import pytest

from torchcoll.core.variables import MASK, kept_variables, masked, masked_labels, masked_words
from torchcoll.libraries.nccl import variables as nccl
from torchcoll.libraries.oneccl import variables as oneccl

R = "Q7rT2mXv9LpZ4kWs8NbY3cHd6JfG1eAu5oPi"  # 36 of base62
H = "9f3b7c1d5e8a2046f1b9d3c7e5a80642"  # 32 of hex

# (how it is kept, the text in which {} is the secret, the secret)
TEXT, VARIABLE, LABEL, WORDS = "text", "variable", "label", "words"
PREFIXED = [
    (TEXT, "clone with {} failed", "ghp" + f"_{R}"),
    (
        TEXT,
        "pip install --index-url https://__token__:{}@pypi.org/simple",
        "pypi-" + f"AgEIcHlwaS5v{R}",
    ),
    (VARIABLE, "NCCL_NET_PLUGIN={}", "hf" + f"_{R}"),
    (VARIABLE, "UCX_NOTE=key is {};", "AKIA" + "Q3EGRIVT7WX5YZ2B"),
    (LABEL, "owner={}", "glpat-" + "x7Kd_9sQ2mPzR4tVwY8a"),
    (LABEL, "who={}", "xoxb-" + "301234567890-301234567891-x7Kd9sQ2mPzR4tVw"),
    (
        TEXT,
        "[W] posting to https://hooks.slack.com/services/{}",
        "T01AB2CD3/B04EF5GH6/x7Kd9sQ2mPzR4tVwY8aBcDeF",
    ),
    (TEXT, "OPENAI={}", "sk-" + f"proj-{R}-{R}"),
    (TEXT, "using {} for the judge", "sk-" + f"ant-api03-{R}_{R}AA"),
    (WORDS, "python eval.py --hub {}", "hf" + "_aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH"),
    (TEXT, "gcs: {}", "AIza" + "SyB3x7Kd9sQ2mPzR4tVwY8aBcDeFgHiJkLm"),
    (TEXT, "stripe {}", "sk" + "_live_x7Kd9sQ2mPzR4tVwY8aBcDeF"),
    (TEXT, "vault login {}", "hvs." + f"CAESI{R}"),
    (TEXT, "login nvcr.io $oauthtoken {}", "nvapi-" + f"{R}-{R[:20]}"),
    (TEXT, "databricks {}", "dapi" + H),
    (
        TEXT,
        '{{"auths":{{"ghcr.io":{{"auth":"{}"}}}}}}',
        "eyJ" + "1c2VyIjoiYm9iIiwicGFzcyI6Imh1bnRlcjIifQ==",
    ),
    (
        LABEL,
        "ci={}",
        "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1rwW1gFWFO",
    ),
    (
        TEXT,
        "sendgrid {} ok",
        "SG." + "x7Kd9sQ2mPzR4tVwY8aBcD.x7Kd9sQ2mPzR4tVwY8aBcDeFgHiJkLmNoPqRsTuVwXy",
    ),
    (TEXT, "docker login -p {}", "dckr_pat_" + "x7Kd9sQ2mPzR4tVwY8aBcDeFgHi"),
    (TEXT, "npm: {}", "npm" + f"_{R}"),
    (VARIABLE, "PBS_O_NOTE={}", "do" + "p_v1_" + H + H),
    (TEXT, "session {}", "ASIA" + "Q3EGRIVT7WX5YZ2B"),
    (TEXT, "wandb {}", "gsk" + f"_{R}{R[:16]}"),
    (TEXT, "tailscale up --authkey={}", "tskey-" + "auth-kDx7Kd9sQ2m-PzR4tVwY8aBcDeFgHiJkLmNo"),
]
OTHERS = [
    (
        TEXT,
        "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
        "b3BlbnNzaC1rZXktdjEAAAAABG5v",
    ),
    (VARIABLE, "SLURM_X=-----BEGIN EC PRIVATE KEY-----{}", "MHcCAQEEIIrYSSNQFaA2Hwf1"),
    (WORDS, "curl -H 'authorization: bearer {}' http://h/x", "zz-top-secret"),
    (WORDS, "curl -H 'X-Api-Key: {}' http://h/x", "plain-word"),
    (TEXT, "AUTHORIZATION=Basic {}", "Ym9iOmh1bnRlcjI="),
    (TEXT, 'headers: {{"x-auth-token": "{}", "n": 1}}', "tulip, daisy"),
    (TEXT, "Proxy-Authorization: Digest username={}", "bob, response=5f4dcc3b"),
    (TEXT, "Cookie: theme=dark; sid={}", "s1x2y3"),
    (TEXT, "Set-Cookie: {}; HttpOnly", "connect.sid=s%3Aabc"),
    (TEXT, "GET /a?x=1&sig={}&y=2", "Zm9vYmFy%2Bz0"),
    (TEXT, "https://h.blob.core.windows.net/c?sv=2024-11-04&se=2026&sig={}", "aB%2FcD%3D"),
    (TEXT, "https://maps/x?key={}", "tulips99"),
    (TEXT, "wss://h/ws?access_token={}", "tulips"),
    (TEXT, "https://b.s3.amazonaws.com/k?X-Amz-Signature={}&X-Amz-Expires=60", H + H),
    (WORDS, "sh -c 'stress --password {} --cpu 4'", "hunter2"),
    (WORDS, "stress --db-password {}", "hunter two"),
    (WORDS, "curl -u bob:{} http://h", "hunter2"),
    (TEXT, 'env: {{"name": "DB_PASSWORD", "value": "{}"}}', "hunter2"),
    (TEXT, "<password>{}</password>", "hun&ter2"),
    (TEXT, "machine h login bob password {}", "hunter2"),
    (TEXT, "postgresql://bob:{}@db:5432/x?sslmode=require", "p@ss/w#rd?1"),
    (TEXT, "redis://:{}@cache:6379/0", "hunter2"),
    (TEXT, "mongodb+srv://bob:{}@c0.mongodb.net", "a,b;c(d)"),
    (TEXT, "ftp://bob:{}@h", "12345"),
    (TEXT, "//bob:{}@host/share", "hunter2"),
    (
        TEXT,
        "AccountName=x;AccountKey={};EndpointSuffix=core.windows.net",
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    ),
    (VARIABLE, "NCCL_WIFI_PSK={}", "tulips"),
    (VARIABLE, "UCX_TOTP={}", "123456"),
    (VARIABLE, "FI_HMAC={}", "tulips"),
    (VARIABLE, "GLOO_PAT={}", "tulips"),
    (VARIABLE, "OMPI_MCA_SALT={}", "tulips"),
    (VARIABLE, "TORCH_CLIENT_CERT={}", "tulips"),
    (LABEL, "db_password={}", "12345678"),
    (LABEL, "note={}", R),
    (LABEL, "aws_secret={}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzzzKEY"),
    (TEXT, r"cfg={{\"token\": \"{}\", \"n\": 2}}", "tulips"),
]


def kept(kind: str, text: str) -> str:
    name, _, value = text.partition("=")
    if kind == VARIABLE:
        return kept_variables({name: value})[name]
    if kind == LABEL:
        return masked_labels({name: value})[name]
    if kind == WORDS:
        return " ".join(masked_words(shlex.split(text)))
    return masked(text)


def leaks(shapes):
    """The shapes of which six characters in a row, or all, are left."""
    left = []
    for kind, text, secret in shapes:
        shown = kept(kind, text.format(secret))
        pieces = {secret[at : at + 6] for at in range(max(1, len(secret) - 5))}
        if any(piece in shown for piece in pieces):
            left.append((kind, text, shown))
    return left


def test_no_token_with_a_public_prefix_is_left():
    assert leaks(PREFIXED) == []


def test_of_the_others_at_most_three_are_left():
    assert leaks(OTHERS) == []


ORDINARY = """
    /home/user/Projects/torchcoll/.venv-test/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so
    /opt/conda/envs/py311Cuda124Torch26Nightly/lib/libnccl.so.2
    /nix/store/1q9xz7v6v0yq8a5c4k3b2j1h0g9f8d7s-nccl-2.27.5/lib/libnccl.so
    /opt/spack/opt/spack/linux-ubuntu22.04-zen3/gcc-12.3.0/openmpi-5.0.3-kz4ymqcmzyupwcsqfp3kjjqvsfkh2wcy/lib/libmpi.so
    2.27.5+cuda12.9
    2.14.0.dev20251103+cu130
    nvcr.io/nvidia/pytorch:25.03-py3
    registry.local:5000/team/torch@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    688cbb3f0d5e1a2b3c4d5e6f708192a3b4c5d6e7
    commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1
    ^mlx5_bond_0,=mlx5_1
    Ring,Tree
    allreduce:tree,ring;allgather:^ring
    dgx[001-064,070],gpu-node-17
    node001.cluster.example.com:29500
    10.0.0.1:29500,10.0.0.2:29500
    tcp://10.12.0.7:4242
    tcp4://10.0.0.1:39999:24:32
    prterun-node1-12345@1
    prte-n0-12@0.0;tcp4://10.0.0.1:39999
    3735158784.0;tcp://192.168.1.2,10.0.0.2:41235
    0000:3b:00.0
    0000:81:00.0,0000:c1:00.0
    GPU-8f1b2c3d-4e5f-6a7b-8c9d-0e1f2a3b4c5d
    MIG-GPU-8f1b2c3d-4e5f-6a7b-8c9d-0e1f2a3b4c5d/1/0
    550e8400-e29b-41d4-a716-446655440000
    ab340000-7a1f-1f2e-0000-0001b2c3d4e5
    [FFFF0000FFFF,0000FFFF0000]
    0xffffffff,0x7f3a2b1c0000
    0xa7b3c9d2e1f04455
    granularity=fine,compact,1,0
    OMP_PROC_BIND=close OMP_PLACES=cores
    UCX_TLS=rc,cuda_copy,cuda_ipc,sm,self
    FI_PROVIDER=psm3;ofi_rxm
    psm3:verbs;ofi_rxm:tcp
    I_MPI_PIN_DOMAIN=auto:compact
    --mca btl_tcp_if_include ib0 --bind-to core
    torchrun --nproc-per-node 8 --rdzv-endpoint node1:29400 -m torchcoll.allreduce -b 1K -e 1G
    python train.py --max-tokens 4096 --tokenizer llama-3 --seed 7
    docker run --user 1000:1000 image
    git@github.com:org/repo.git
    https://github.com/pytorch/pytorch/pull/12345#discussion_r123456
    http://proxy.example.com:3128/path?size=4096&sort=asc
    user@node1:/scratch/runs
    rank0:gpu0 cuda:0@node1
    2026-11-23T05:10:39Z
    05:31:49@node3
    n0:1234:1240 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
    NCCL INFO comm 0x55d0c8a8d2b0 rank 0 nranks 8 busId 1b000 commId 0xdf0e5b9b7d2e8d1c - Init
    NCCL_IB_PKEY set by environment to 5
    rkey=0x1f00bc lkey 0x2a mkey:0x1234 pkey 0xffff
    Bootstrap: Using eth0:10.0.0.1<0>
    NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
    TUNER/Plugin: Could not find: libnccl-tuner.so
    Llama3x8BPretrainRun7BatchSize4K
    AllReduceRingLL128SimpleNVLSTree
    AllReduce_Sum_f32_RING_LL128_NVLSTree_2x8x16MiB
    H100SXM5HopperNVLink4Switch3Node0012
    CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
    train-llama-70b-2026-11-23
    torchelastic_4_ktr5o2xz/attempt_0/0/error.json
    /tmp/tmpab3x9_1q/none_7ug2h1xs
    session 12 of 40, key size 64
    pin=on
    auth=none
    CCL_ATL_TRANSPORT=mpi
    Intel(R) Xeon(R) Platinum 8480C
    gcc (Ubuntu 13.2.0-23ubuntu4) 13.2.0
    driver 580.95.05, firmware 28.43.2026 (MT_0000000838)
    SLURM_JOB_ID=12345678 SLURM_STEP_ID=0 SLURM_TASKS_PER_NODE=8(x4)
    sha256:9f86d081884c7d659a2feaa0c55ad015
    x86_64-conda-linux-gnu-gcc
    jobs/Run20261123Night/All8Nodes2Rails/log.txt
    the secret of NCCL's speed is overlap
    Basic information about the token ring
    password authentication is off
    1:2:3:4@5
    task-list-of-2026-very-long-and-wordy-name
    sk-learn-bench-with-a-long-name
    key_value_size=128
    SIGTERM signal=15
    CERTIFIED=2026 keys=4
    COMPASS=3 monkey=1 author=alice authority=10.0.0.1
    passes=3 session_count=5 bypass=1 pinned=2 signals=abc
"""


@pytest.mark.parametrize("text", [line.strip() for line in ORDINARY.strip().splitlines()])
def test_what_is_no_secret_stays(text):
    assert masked(text) == text


def test_variables_that_libraries_read_are_not_masked():
    """Else two settings of them would look alike."""
    names = sorted({*nccl.NAMES, *nccl.TORCH_NAMES, *oneccl.NAMES})
    assert len(names) > 400
    assert [name for name in names if kept_variables({name: "2"}) != {name: "2"}] == ["NCCL_PSK"]


def test_labels_that_are_no_secrets_stay_apart():
    labels = {
        **{"pin": "on", "tokens": "4096", "key": "a", "pat": "1", "session": "night-3"},
        **{"cert": "none", "salt": "7", "tokenizer": "llama-3", "pass": "2", "auth": "munge"},
        **{"keys": "ring,tree", "otp": "0", "code": "v2", "sig": "15", "psk": "off"},
        **{"commit": "688cbb3f0d5e1a2b3c4d5e6f708192a3b4c5d6e7", "session_pass": "3"},
    }
    assert masked_labels(labels) == labels


@pytest.mark.parametrize(
    "piece",
    [
        "a=",
        "x:",
        "http://",
        "user:@",
        '"',
        "\\",
        "token=",
        "--token ",
        "eyJ.",
        " ",
        "a:b@",
        "-",
        "bearer ",
        "<a>",
        "basic ",
        "name:'a'",
        "login ",
        'token="',
        "authorization ",
        "-----BEGIN A-----",
        "A1b",
        "key=",
        "?key=a&",
        "1",
        "x.",
        "M",
    ],
)
def test_hostile_texts(piece):
    """3,000 characters: with steps that grow as their power of two it would never end."""
    text = piece * (3000 // len(piece))
    assert len(masked(text)) <= 4 * len(text)


def test_what_is_masked_stays_masked():
    """But of a header without quotes, as words have it, the rest of the line goes, too."""
    shapes = [shape for shape in (*PREFIXED, *OTHERS) if shape[0] != WORDS]
    shown = [kept(kind, text.format(secret)) for kind, text, secret in shapes]
    assert all(MASK in text for text in shown)
    assert [masked(text) for text in shown] == shown
