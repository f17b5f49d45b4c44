"""200 secrets of 70 kinds, planted where people have them, reach no output; 60 ordinary texts stay.

The secrets are made up here, from a seed. A prefix of a maker is put before the rest in the code,
so that no scanner takes this file for a leak.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import re
import string
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import Job, command

from torchcoll.bench.sweep import Sweep
from torchcoll.cli import main
from torchcoll.core.variables import kept_value, masked, masked_words

BASE62 = string.ascii_letters + string.digits
# What a secret is made of -> how: a word of letters alone, letters and digits, ...
DRAWN = {
    "word": lambda draw: "".join(draw.choices(string.ascii_lowercase, k=10)),
    "mixed": lambda draw: "".join(draw.choices(BASE62, k=36)),
    "short": lambda draw: "".join(draw.choices(BASE62, k=9)) + "7x",
    "upper": lambda draw: "".join(draw.choices(string.ascii_uppercase + "234567", k=16)),
    "hex": lambda draw: "".join(draw.choices("0123456789abcdef", k=40)),
    "base64": lambda draw: "".join(draw.choices(BASE62 + "+/", k=86)) + "==",
    "number": lambda draw: str(draw.randrange(10**11, 10**12)),
    "marks": lambda draw: "".join(draw.choices(BASE62, k=6)) + "p@/!#" + draw.choice("abc"),
}
# (kind, the text around the secret, a prefix that belongs to the secret, what it is made of)
KINDS = [
    ("GitHub", "clone with {} failed", "ghp" + "_", "mixed"),
    ("GitHub, fine-grained", "using {}", "github" + "_pat_", "mixed"),
    ("GitHub in an address", "git+https://{}@github.com/org/repo", "gho" + "_", "mixed"),
    ("GitLab", "CI_JOB {} expired", "glpat" + "-", "mixed"),
    ("Hugging Face", "401 for {}", "hf" + "_", "mixed"),
    ("Hugging Face organisation", "login {}", "api" + "_org_", "mixed"),
    ("AWS key", "signed by {}", "AKIA", "upper"),
    ("AWS session key", "profile {}", "ASIA", "upper"),
    ("AWS secret", "aws_secret_access_key = {}", "", "mixed"),
    ("AWS signature", "GET https://b.s3.amazonaws.com/k?X-Amz-Signature={}&y=1", "", "hex"),
    ("Google API", "key={}", "AIza" + "Sy", "mixed"),
    ("Google OAuth", "gcs {}", "ya29" + ".", "mixed"),
    ("Google client", "client {}", "GOCSPX" + "-", "mixed"),
    ("Azure client", "app {}", "abc8Q~", "mixed"),
    ("Azure signature", "https://a.blob.core.windows.net/c?sv=2024-11-04&sig={}", "", "short"),
    ("Azure account", "AccountName=x;AccountKey={};Suffix=y", "", "base64"),
    ("OpenAI", "judge uses {}", "sk" + "-proj-", "mixed"),
    ("Anthropic", "judge uses {}", "sk" + "-ant-api03-", "mixed"),
    ("Groq", "endpoint {}", "gsk" + "_", "mixed"),
    ("NVIDIA", "docker pull with {}", "nvapi" + "-", "mixed"),
    ("W&B variable", "WANDB_API_KEY={}", "", "hex"),
    ("W&B login", "wandb login {}", "", "hex"),
    ("Slack bot", "post as {}", "xoxb" + "-1234567890-", "mixed"),
    ("Slack application", "connect {}", "xapp" + "-1-A", "mixed"),
    ("Slack address", "https://hooks.slack.com/services/{}", "T01AB2CD3/B04EF5GH6/", "mixed"),
    ("JSON Web Token", "session {}", "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.", "mixed"),
    ("registry", '{{"auths": {{"ghcr.io": {{"auth": "{}"}}}}}}', "eyJ" + "1c2VyIjoi", "mixed"),
    ("PEM", "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----", "MIIEvg", "word"),
    ("OpenSSH", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n{}\n-----END X-----", "", "word"),
    ("npm", "npm {}", "npm" + "_", "mixed"),
    ("PyPI", "pip install --index-url https://__token__:{}@pypi.org/simple", "pypi" + "-", "mixed"),
    ("Docker Hub", "pull with {}", "dckr_pat" + "_", "mixed"),
    ("Vault", "unwrap {}", "hvs" + ".", "mixed"),
    ("Databricks", "cluster {}", "dapi", "hex"),
    ("Tailscale", "tailscale up {}", "tskey" + "-auth-", "mixed"),
    ("proxy", "got 407 from http://joe:{}@proxy:3128/", "", "word"),
    ("proxy, percent", "https_proxy=http%3A%2F%2Fjoe%3A{}%40proxy", "", "word"),
    ("PostgreSQL", "postgresql://joe:{}@db:5432/runs?sslmode=require", "", "marks"),
    ("Redis", "redis://:{}@cache:6379/0", "", "word"),
    ("user and host", "mount joe:{}@a-host", "", "short"),
    ("bearer", "Authorization: Bearer {}", "", "word"),
    ("basic", "Authorization: Basic {}", "", "mixed"),
    ("header", "-H 'X-Api-Key: {}'", "", "word"),
    ("cookie", "Cookie: theme=dark; sid={}", "", "word"),
    ("Java session", "JSESSIONID={}", "", "upper"),
    ("token of a query", "wss://h/ws?token={}", "", "word"),
    ("*_PASS", "DB_PASS={}", "", "word"),
    ("password", "password={}", "", "word"),
    ("password below", "password:\n  {}", "", "word"),
    ("PIN", "SMS_OTP={}", "", "number"),
    ("option", "--password {}", "", "word"),
    ("option, comma", "--token,{}", "", "word"),
    ("option, list", '["--token", "{}"]', "", "word"),
    ("curl", "curl -u joe:{} https://h", "", "word"),
    ("curl, glued", "curl -ujoe:{} https://h", "", "word"),
    ("sshpass", "sshpass -p {} ssh h", "", "word"),
    ("mysql", "mysql -u root -p{} db", "", "word"),
    ("docker login", "docker login -u joe -p {} registry", "", "word"),
    ("az login", "az login --service-principal -u x -p {}", "", "word"),
    ("ipmitool", "ipmitool -H h -U admin -P {} power status", "", "word"),
    ("redis-cli", "redis-cli -h h -a {}", "", "word"),
    ("ldapsearch", "ldapsearch -x -D cn=admin -w {}", "", "word"),
    ("snmpwalk", "snmpwalk -v2c -c {} switch", "", "word"),
    ("keytool", "keytool -list -storepass {}", "", "word"),
    ("Oracle", "jdbc:oracle:thin:scott/{}@db", "", "word"),
    ("smbclient", "smbclient -U joe%{} //h/share", "", "word"),
    (".pgpass", "db.example:5432:runs:joe:{}", "", "word"),
    ("Hadoop", "<name>db.password</name><value>{}</value>", "", "word"),
    ("requests", "requests.get(url, auth=('joe', '{}'))", "", "word"),
    ("Spark", "spark.hadoop.fs.s3a.secret.key {}", "", "word"),
    ("netrc", "machine h login joe password {}", "", "word"),
    ("netrc, turned", "machine h password {} login joe", "", "word"),
    ("German", "passwort: {}", "", "word"),
    ("French", "mot_de_passe={}", "", "word"),
    ("Spanish", "contraseña: {}", "", "word"),
    ("Chinese", "密码\uff1a{}", "", "word"),
    ("Kubernetes", 'env: {{"name": "DB_PASSWORD", "value": "{}"}}', "", "word"),
]
PLACES = ("variable", "label", "error", "reason", "log", "argument")
# Variables of libraries and of launchers, whose names say nothing.
VARIABLES = ("NCCL_X{}", "UCX_X{}", "SLURM_X{}", "OFI_NCCL_X{}", "PBS_O_X{}")


def plant():
    """(kind, place, text, secret) of 200."""
    draw = random.Random(42)
    for number in range(200):
        kind, form, prefix, made_of = KINDS[number % len(KINDS)]
        round_number, place_number = divmod(number, len(KINDS))
        place = PLACES[(place_number + round_number) % len(PLACES)]  # another one in each round
        secret = DRAWN[made_of](draw)
        yield kind, place, form.format(prefix + secret), secret


SECRETS = list(plant())


def of_place(place):
    return [text for _, where, text, _ in SECRETS if where == place]


def test_there_are_200_of_60_kinds_or_more_and_each_place_has_some():
    assert len(SECRETS) == len({secret for *_, secret in SECRETS}) == 200
    assert len({kind for kind, *_ in SECRETS}) == len(KINDS) >= 60
    assert all(len(of_place(place)) > 30 for place in PLACES)


def refuse_with(texts):
    """A setup: each case is refused by all ranks, with the next text as the library's message."""

    def setup(rank):
        remaining = iter(texts)

        def all_reduce(*args, **kwargs):
            raise RuntimeError(next(remaining))

        dist.all_reduce = all_reduce

    return setup


def fail_with(texts):
    """A setup: the last of the ranks raises an exception with all of the texts."""

    def setup(rank):
        def measured(*args):
            raise ValueError("\n".join(texts))

        if rank == int(os.environ["WORLD_SIZE"]) - 1:
            Sweep.measured = measured

    return setup


def everything_in(folder: Path) -> str:
    return "\n".join(p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """All that torchcoll writes and prints of runs, logs and commands with the 200 secrets."""
    folder = tmp_path_factory.mktemp("leaks")
    (folder / "out").mkdir()
    variables = {
        VARIABLES[n % len(VARIABLES)].format(n): text.replace("\0", "")
        for n, text in enumerate(of_place("variable"))
    }
    labels = [w for n, text in enumerate(of_place("label")) for w in ("--label", f"l{n}={text}")]
    reasons = of_place("reason")
    sizes = ",".join(str(4 * n) for n in range(1, len(reasons) + 1))
    refused = ["--sizes", sizes, "-n", "2", "--output", str(folder / "out" / "run.jsonl"), *labels]
    Job(
        folder / "out" / "refused",
        command("all_reduce", refused),
        2,
        environment=variables,
        setup=refuse_with(reasons),
    ).wait()
    errors = folder / "out" / "errors"
    for ranks in (1, 2):
        name = f"failed-{ranks}"
        Job(
            folder / "out" / name,
            command("all_reduce", ["-n", "2", "--output", str(folder / "out" / f"{name}.jsonl")]),
            ranks,
            environment=lambda rank: {"TORCHELASTIC_ERROR_FILE": f"{errors}-{rank}.json"},
            setup=fail_with(of_place("error")),
        ).wait()
    return folder


@pytest.fixture
def outputs(written, tmp_path, capfd, monkeypatch):
    """What these files and the commands on them say."""
    out, run = written / "out", str(written / "out" / "run.jsonl")
    monkeypatch.chdir(tmp_path)
    log = written / "nccl.log"
    lines = [f"n1:7:7 [0] NCCL WARN {text}" for text in of_place("log")]
    log.write_text("n1:7:7 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\n" + "\n".join(lines))
    for words in (
        ["show", run, str(out / "failed-2.jsonl")],
        ["show", run, "--format", "json"],
        ["show", run, "--format", "csv"],
        ["check", run],
        ["report", run, "-o", str(tmp_path / "report.html")],
        ["report", run, "-o", str(tmp_path / "report.md")],
        ["collect", run, "--into", str(tmp_path / "runs.sqlite")],
        ["log", str(log)],
        ["log", str(log), "--format", "json"],
        ["postmortem", str(log)],
    ):
        assert main(words) != 2, words
    arguments = of_place("argument")
    script = tmp_path.parent / "fails.sh"
    script.write_text('for word in "$@"; do echo "torchcoll: error: $word"; done; exit 1\n')
    main(["matrix", "-o", "m", "--runs", "1", "--", "sh", str(script), *arguments])
    for text in (tmp_path / "m" / "logs").iterdir():  # what the script itself prints is its own
        text.unlink()
    texts = [everything_in(out), everything_in(tmp_path), *capfd.readouterr()]
    charts = re.findall(r'id="data">([^<]+)', (tmp_path / "report.html").read_text())
    texts += [gzip.decompress(base64.b64decode(packed)).decode() for packed in charts]
    texts += [" ".join(masked_words(arguments)), json.dumps(masked_words(arguments))]
    return "\n".join(texts)


def test_at_most_3_of_200_reach_an_output(written, outputs):
    leaked = [(kind, place) for kind, place, _, secret in SECRETS if secret in outputs]
    assert leaked == []
    # They were there to be written, and what is no secret is.
    header = json.loads((written / "out" / "run.jsonl").read_text().splitlines()[0])
    variables = header["environment"]["variables"]
    assert sum("_X" in name for name in variables) == len(of_place("variable"))
    assert len(header["spec"]["labels"]) == len(of_place("label"))
    cases = [
        record
        for record in map(json.loads, (written / "out" / "run.jsonl").read_text().splitlines())
        if record["record"] == "case"
    ]
    assert len(cases) == len(of_place("reason"))
    for ranks in (1, 2):
        stderr = (written / "out" / f"failed-{ranks}" / f"{ranks - 1}.stderr").read_text()
        assert stderr.count("***") >= len(of_place("error")) and "Traceback" in stderr
    for text in ("clone with *** failed", "docker login -u joe -p ***", "proxy:3128"):
        assert text in outputs


# What people have, and what must stay readable: (a text, and where it stands).
SETTINGS = """
    NCCL_ALGO=allreduce:tree,ring;allgather:^ring
    NCCL_IB_HCA=^mlx5_bond_0,mlx5_1:1
    NCCL_SOCKET_IFNAME==enp175s0f1np1
    NCCL_DEBUG_FILE=/scratch/runs/nccl.%h.%p.log
    NCCL_IB_PKEY=0x8001
    NCCL_NET_PLUGIN=aws-ofi
    NCCL_COMM_ID=10.0.0.1:29500
    NCCL_NET=AWS Libfabric
    NCCL_TOPO_FILE=topo/ring_4gpu.xml
    NCCL_SOCKET_IFNAME=^lo,docker,veth
    UCX_IB_PCI_BW=mlx5_0:100Gbs
    CXI_FORK_SAFE=1
    ZES_ENABLE_SYSMAN=1
    PBS_NODEFILE=/var/spool/pbs/aux/12345.pbs01
    SLURM_CPU_BIND_LIST=fff,fff000,fff000000,fff000000000
    NCCL_BUFFSIZE=8388608
    NCCL_TUNER_PLUGIN=/opt/amazon/ofi-nccl/lib/libnccl-ofi-tuner.so
    OFI_NCCL_PROTOCOL=SENDRECV
    FI_PROVIDER=psm3;ofi_rxm
    FI_EFA_FORK_SAFE=1
    FI_CXI_DEFAULT_CQ_SIZE=131072
    UCX_TLS=rc,cuda_copy,cuda_ipc,sm,self
    UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1
    UCC_TL_UCP_TUNE=allreduce:0-4k:@knomial
    NVSHMEM_SYMMETRIC_SIZE=2G
    MSCCLPP_SOCKET_IFNAME=eth0
    SHARP_COLL_ENABLE_SAT=1
    MLX5_SINGLE_THREADED=1
    PSM3_NIC=any
    RDMAV_FORK_SAFE=1
    UR_L0_USE_IMMEDIATE_COMMANDLISTS=2
    ZE_AFFINITY_MASK=0.0,0.1
    ONEAPI_DEVICE_SELECTOR=level_zero:0,1;!opencl:*
    CCL_ALLREDUCE=ring:0-8192;rabenseifner:8193-max
    CCL_WORKER_AFFINITY=3,7
    I_MPI_PIN_DOMAIN=[FFFF0000FFFF,0000FFFF0000]
    I_MPI_ADJUST_ALLREDUCE=1:0-100@2-4;2:101-max
    KMP_AFFINITY=granularity=fine,compact,1,0
    OMP_PLACES={0:4}:8:4
    GOMP_CPU_AFFINITY=0 3 1-2 4-15:2
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128
    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,1=10MB
    CUDA_VISIBLE_DEVICES=GPU-8f1b2c3d-4e5f-6a7b-8c9d-0e1f2a3b4c5d
    NVIDIA_VISIBLE_DEVICES=all
    GPU_MAX_HW_QUEUES=2
    LD_PRELOAD=/opt/a/libnccl.so.2 /opt/b/libprofile.so
    SLURM_JOB_NODELIST=dgx[001-064,070]
    SLURM_TASKS_PER_NODE=8(x4)
    SLURM_CPU_BIND=quiet,mask_cpu:0x1,0x2
    SLURM_EXPORT_ENV=ALL
    NCCL_SOCKET_IFNAME=enP5p1s0f0np0
    NCCL_IB_HCA=rocep1s0f1,roceP2p1s0f1
    UCX_NET_DEVICES=roceP2p1s0f0:1
    UCC_TL_UCP_TUNE=allreduce:0-4k:@knomial#alltoall:inf:@pairwise
    I_MPI_PIN_PROCESSOR_LIST=allcores:map=scatter
    ROCR_VISIBLE_DEVICES=GPU-4dcd6bf2a8e3c5d1
    LD_PRELOAD=libhugetlbfs.so libjemalloc.so.2
    SLURM_CPU_BIND=quiet,mask_cpu:0x0000FF,0x00FF00,0x0000000000FF000000000000FF0000
    SLURM_CPU_BIND_TYPE=mask_cpu:
    OMPI_MCA_rmaps_base_mapping_policy=ppr:4:node:PE=8
    FLUX_TASK_RANK=3
    MASTER_ADDR=node1.cluster.example.com
""".strip().splitlines()
TEXTS = """
    torchrun --nproc-per-node 8 --rdzv-endpoint node1:29400 -m torchcoll.allreduce -b 1K -e 1G
    srun --ntasks 16 --export=ALL,NCCL_ALGO=Ring python -m torchcoll.suite --label fabric=ib
    docker run --gpus all -p 8080:80 -u 1000:1000 nvcr.io/nvidia/pytorch:25.03-py3
    registry.local/team/torch:2.6@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b
    commit 688cbb3f0d5e1a2b3c4d5e6f708192a3b4c5d6e7 of main
    meta-llama/Llama-3.1-8B-Instruct, mistralai/Mixtral-8x7B-v0.1
    mpirun -np 8 -x NCCL_IB_HCA=mlx5_0:1 --mca btl_tcp_if_include ib0 ./all_reduce_perf -b 8 -e 1G
    NCCL INFO comm 0x55d0c8a8d2b0 rank 0 nranks 8 busId 1b000 commId 0xdf0e5b9b7d2e8d1c - Init
    n0:1234:1240 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
    ssh -p 22 joe@gpu-node-017 nvidia-smi
    rsync -a joe@n1:/scratch/runs/ ./runs
    git clone git@github.com:org/repo.git && git checkout v2.1.0
    uses actions/checkout@v4
    python train.py --max-tokens 4096 --tokenizer llama-3 --key-size 128 --seed 7
    curl -sSL https://h/metrics -o out.txt
    mysql -p -h db runs
    ProcessGroupNCCL.cpp:1234: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)
    /nix/store/1q9xz7v6v0yq8a5c4k3b2j1h0g9f8d7s-nccl-2.27.5/lib/libnccl.so
    password authentication is off
    the first pass=2 of 3 passes, session 12 of 40
""".strip().splitlines()


def test_there_are_60_ordinary_ones():
    assert len(SETTINGS) + len(TEXTS) >= 60


@pytest.mark.parametrize("line", [line.strip() for line in SETTINGS])
def test_a_setting_keeps_its_value(line):
    name, _, value = line.partition("=")
    assert kept_value(name, value) == value


@pytest.mark.parametrize("text", [text.strip() for text in TEXTS])
def test_an_ordinary_text_stays(text):
    assert masked(text) == text
    assert masked_words(text.split()) == text.split()
