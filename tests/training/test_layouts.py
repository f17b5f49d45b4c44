"""Layouts: how they are written, which ranks are in which group, and what is refused."""

import json
import re
from dataclasses import replace

import pytest
from error_form import error_text
from parallel_models import Widths, llama_config

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.parts.curves.named_machines import as_machine
from torchcoll.parts.training.architectures import read_architecture
from torchcoll.parts.training.config_projection import LayoutComparison, sort_key
from torchcoll.parts.training.layout_search import candidate_layouts, launch_flags
from torchcoll.parts.training.layouts import check_layout, parse_batch, parse_layout, parse_layouts
from torchcoll.parts.training.layouts_show import layouts_answer


@pytest.mark.parametrize(
    ("text", "ranks", "number"),
    [
        ("fsdp=64", None, 64),
        ("hsdp=8x8", None, 64),
        ("dp=8,tp=8,sp,pp=4,cp=2,ep=8", None, 512),
        ("zero1=16,pp=4x2", None, 64),
        ("tp=8", 64, 64),
        ("zero2", 8, 8),
    ],
)
def test_ranks(text, ranks, number):
    assert parse_layout(text, ranks).ranks == number


def test_names_are_what_is_parsed():
    for text in (
        "fsdp=64",
        "hsdp=8x8",
        "dp=8,tp=8,pp=4x2,cp=2,ep=8,sp",
        "fsdp=1",
        "dp@25=8",
        "fsdp=8,tp=2,sp,ckpt",
        "fsdp=8,sac",
        "zero1=1,tp=2,sp,tp-overlap",
        "fsdp=8,tp=2,sp,regather",
        "fsdp=8,ep=8,deepep-fp8,ep-overlap",
    ):
        assert parse_layout(text).name == text


def test_groups():
    """2 pipeline stages of 2 replicas of 4 shards, each 2 context parts of 2 ranks: 64 ranks."""
    groups = parse_layout("hsdp=2x4,tp=2,pp=2,cp=2,ep=4,sp").groups()
    assert groups["tp"] == (2, 1)
    assert groups["cp"] == (2, 2)
    assert groups["shard"] == (8, 2)  # with the ranks of cp
    assert groups["replicate"] == (2, 16)
    assert groups["ep"] == (4, 2)
    assert groups["edp"] == (2, 8)
    assert groups["pp"] == (2, 32)


def test_growing():
    assert parse_layout("fsdp=8,tp=8").on(512).name == "fsdp=64,tp=8"
    assert parse_layout("hsdp=8x8").on(512).name == "hsdp=64x8"
    assert parse_layout("dp=8").on(64).name == "dp=64"
    with pytest.raises(UsageError, match=error_text("ranks", "12", "a multiple of 8")):
        parse_layout("fsdp=8,tp=8").on(12)


def test_layouts_to_compare():
    model = read_architecture("llama-3-8b")
    layouts, left_out = parse_layouts("dp,fsdp,hsdp,fsdp+tp=8+sp,tp=8", 64, model)
    assert not left_out
    assert [layout.name for layout in layouts] == [
        "dp=64",
        "fsdp=64",
        "hsdp=8x8",
        "fsdp=8,tp=8,sp",
        "fsdp=8,tp=8",
    ]
    assert [each.ranks for each in parse_layouts("fsdp=32+tp=2,dp", None, model)[0]] == [64, 64]
    with pytest.raises(UsageError, match=error_text("compare", "dp=32 = 32 ranks", "64 ranks in")):
        parse_layouts("fsdp=64,dp=32", None, model)
    with pytest.raises(
        UsageError, match=error_text("compare", "zero3-deepspeed", "one of dp")
    ) as e:
        parse_layouts("fsdp,zero3-deepspeed", 64, model)
    assert str(e.value).endswith("What DeepSpeed itself sends is not planned.")


def test_a_layout_that_needs_checkpointing_and_the_same_with_it_are_one_row():
    layouts, settings = "fsdp,fsdp+ckpt,hsdp", {"ranks": 512, "batch": "4x8192"}
    comparison = torchcoll.compare_plans("llama-3-70b", layouts, machine="8xH100", **settings)
    names = [row.layout.name for row in comparison.rows]
    assert names == ["fsdp=512,ckpt", "hsdp=64x8"]


def test_layouts_whose_degrees_do_not_divide_are_left_out_with_degrees_that_do(capsys):
    """qwen2.5-7b has 28 heads and 4 of keys and values; 6 divides neither them nor 64."""
    command = ["plan", "qwen2.5-7b", "--ranks", "64", "--machine", "8xH100", "--compare"]
    assert main([*command, "fsdp+tp=6+sp,fsdp+tp=7,fsdp,fsdp+tp=8"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "fsdp+tp=6+sp is left out: got 64, expected a multiple of 6, for tp=6,sp: tp" in text
    assert re.search("tp can be 2, 4;? fsdp[+]tp=7 is left out", text)
    assert "fsdp+tp=8 is left out: got tp=8, expected a divisor of the 28 attention heads" in text
    assert re.search(r"fsdp=64 (is predicted|[\d.]+)", text)
    assert main([*command, "fsdp+tp=3"]) == 2
    assert error_text("compare", "fsdp+tp=3", "a multiple of 3") in capsys.readouterr().err


def test_layouts_must_fit_the_gpu_of_a_published_machine():
    """Parameters, gradients and two states of Adam of 8.03 billion, 2 bytes each, are 64 GB, and
    the whole gradients in DDP's buckets 16 GB.
    """

    def fits(**memory):
        comparison = torchcoll.compare_plans(
            "llama-3-8b", "dp=64,fsdp=64", machine="8xH100", step_ms=900, **memory
        )
        return comparison.memory_bytes, {row.layout.name: row.fits for row in comparison.rows}

    assert fits() == (79.1 * 2**30, {"fsdp=64": "yes", "dp=64": "no"})
    assert fits(memory_gb=192) == (192e9, {"dp=64": "yes", "fsdp=64": "yes"})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("zero3=8", error_text("parallel", "zero3", "one of dp, zero1")),
        ("xp=2", error_text("parallel", "xp", "one of dp, zero1")),
        ("dp=2,dp=2", error_text("parallel", "dp twice", "each once")),
        ("dp=2,fsdp=2", error_text("parallel", "dp=2,fsdp=2", "one of dp and fsdp")),
        ("hsdp=8", error_text("parallel", "hsdp=8", "hsdp=REPLICASxSHARDS")),
        ("fsdp", error_text("parallel", "fsdp", "a number, such as fsdp=8")),
        ("fsdp=2,sp", error_text("parallel", "fsdp=2,sp", "tp=2 or more with sp")),
        ("fsdp=2,pp=1x2", error_text("parallel", "fsdp=2,pp=1x2", "pp=2 or more")),
        ("fsdp=0", error_text("parallel", "fsdp=0", "degrees such as")),
        ("fsdp@2=8", error_text("parallel", "fsdp@2=8", "a bucket_cap_mb after dp@")),
        ("dp@x=8", error_text("parallel", "dp@x=8", "a bucket_cap_mb after dp@")),
        ("fsdp=8,sac,ckpt", error_text("parallel", "fsdp=8,sac,ckpt", "one of ckpt and sac")),
        ("fsdp=8,deepep", error_text("parallel", "fsdp=8,deepep", "ep=2 or more with deepep")),
        ("fsdp=8,ep-overlap", error_text("parallel", "fsdp=8,ep-overlap", "ep=2 or more with ep")),
        ("tp=8,tp-overlap", error_text("parallel", "tp=8,tp-overlap", "sp with tp-overlap")),
        ("tp=8,regather", error_text("parallel", "tp=8,regather", "sp with regather")),
    ],
)
def test_layouts_that_are_refused(text, error):
    with pytest.raises(UsageError) as caught:
        parse_layout(text)
    assert str(caught.value).startswith(error)


@pytest.mark.parametrize(
    ("name", "text", "batch", "error"),
    [
        ("llama-3-8b", "tp=3", "1x8", error_text("parallel", "tp=3", "a divisor of the 32 att")),
        ("llama-3-8b", "tp=16", "1x8", error_text("parallel", "tp=16", "a divisor of the 8 key")),
        ("llama-3-8b", "pp=35", "1x8", error_text("parallel", "pp=35", "at most 34 stages for 32")),
        ("llama-3-8b", "pp=8x8", "8x1x8", error_text("parallel", "pp=8x8", "at most 34 stages f")),
        ("llama-3-8b", "pp=4x2", "6x1x8", error_text("batch", "6 micro-batches", "a multiple of")),
        ("llama-3-8b", "fsdp=8,ep=2", "1x8", error_text("parallel", "ep=2", "a model with exp")),
        ("mixtral-8x7b", "fsdp=6,ep=3", "1x8", error_text("parallel", "ep=3", "a divisor of the")),
        ("mixtral-8x7b", "fsdp=6,ep=4", "1x8", error_text("parallel", "ep=4", "a divisor of the")),
        (
            "mixtral-8x7b",
            "fsdp=8,tp=2,ep=4",
            "1x8",
            error_text(
                "parallel",
                "fsdp=8,tp=2,ep=4",
                "sp with ep and tp: the tokens are sharded over tp. Write fsdp=8,tp=2,sp,ep=4.",
            ),
        ),
    ],
)
def test_layouts_that_a_model_cannot_have(name, text, batch, error):
    micro_batches = parse_batch(batch).micro_batches
    with pytest.raises(UsageError) as caught:
        check_layout(parse_layout(text), read_architecture(name), micro_batches)
    assert str(caught.value).startswith(error)


@pytest.mark.parametrize("text", ["1", "0x8", "1x2x3x4", "axb"])
def test_batches_that_are_refused(text):
    with pytest.raises(UsageError) as caught:
        parse_batch(text)
    assert str(caught.value).startswith(error_text("batch", text, "SEQUENCESxTOKENS"))


def test_find_searches_layouts_and_says_how_to_launch_them(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(llama_config(8, Widths(512, 8, 8, 1024, 512))))
    command = ["plan", str(path), "--ranks", "16", "--find", "--machine", "8xH100"]
    assert main([*command, "--batch", "32x8192", "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    rows = result["rows"]
    names = {row["layout"] for row in rows}
    assert {"fsdp=16", "hsdp=2x8", "fsdp=8,tp=2,sp", "fsdp=8,cp=2"} <= {
        name.removesuffix(",sac") for name in names
    }
    assert any("pp=4x2" in name for name in names) and any("zero1" in name for name in names)
    for row in rows:  # 32 sequences of all data-parallel ranks
        layout, batch = parse_layout(row["layout"]), parse_batch(row["batch"])
        ranks = layout.replicas * layout.shards
        assert batch.micro_batches * batch.sequences * ranks == 32
    fitting = [row["step_ns"] for row in rows if row["fits"] != "no"]
    assert rows[0]["step_ns"] == pytest.approx(min(fitting), rel=5e-3)
    assert main([*command, "--batch", "32x8192"]) == 0
    table = capsys.readouterr().out
    assert len(re.findall(r"^\S+=\S* +[\d.]+ m?s ", table, re.MULTILINE)) <= 12
    assert "each the best of its kind" in " ".join(table.split())
    programs = {flags.partition(":")[0] for flags in result["launch"].values()}
    assert programs == {"torchtitan", "Megatron-LM"} and {*result["launch"]} <= names
    command[3] = "37"  # all of them data-parallel
    assert main([*command, "--batch", "3x8192"]) == 2
    assert error_text("batch", "3 sequences", "sequences of all ranks") in capsys.readouterr().err


def test_a_search_keeps_a_tight_layout_beside_its_checkpointed_form():
    """fsdp=8 of llama-3-8b needs 62 GB of 80 with fused kernels, and 78 GB without."""
    found = torchcoll.compare_plans("llama-3-8b", "find", ranks=8, machine="8xH100")
    rows = {row.layout.name: row for row in found.rows}
    assert rows["fsdp=8"].fits == "tight" and rows["fsdp=8,sac"].fits == "yes"
    given = torchcoll.compare_plans("llama-3-8b", "fsdp=8", machine="8xH100").rows[0]
    assert found.rows[0].cost <= given.cost == rows["fsdp=8"].cost
    assert "fsdp=8 (1.0" in layouts_answer(found).details[0]


def test_a_search_has_deepep_on_nvidias_gpus_alone():
    """It exchanges fewer bytes, so that it is not slower."""
    architecture = read_architecture("qwen3-30b-a3b")
    for machine, expected in (("8xH100", True), ("8xMI300X", False)):
        layouts = candidate_layouts(architecture, 8, as_machine(machine), 4096)
        assert any(layout.dispatch for layout in layouts) == expected, machine
        assert any(layout.ep > 1 and not layout.dispatch for layout in layouts)


def test_gathering_again_keeps_less_and_sends_more():
    """As Megatron-LM's zero1 does, per layer 4 bytes of each token and hidden column."""
    plain, again = (
        torchcoll.plan("llama-3-70b", f"fsdp=8,tp=8,sp{word}") for word in ("", ",regather")
    )
    kept = 80 * 4 * 8192 * 8192
    less = plain.step.memory.activations - again.step.memory.activations
    assert less == pytest.approx(kept * (1 - 1 / 8), rel=0.01)
    assert again.step.sent_bytes > plain.step.sent_bytes


def test_the_recommended_layout_can_be_compared_and_launched(capsys):
    """It has a row, and the flags that start it."""
    arguments = ["plan", "llama-3-70b", "--ranks", "512", "--find", "--machine", "8xH100"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    recommended = re.search(r"(\S+) is\s+(as good|predicted)", text).group(1)
    assert re.search(rf"^{re.escape(recommended)} +\d\S+ m?s ", text, re.MULTILINE)
    assert re.search(
        rf"^{re.escape(recommended)}: (torchtitan|Megatron-LM): --", text, re.MULTILINE
    )


def test_the_answer_of_a_comparison_names_what_is_tight_and_what_does_not_fit():
    compared = torchcoll.compare_plans(
        "llama-3-8b", "dp@25,fsdp,hsdp", ranks=16, machine="8xA100", memory_gb=80
    )
    assert re.fullmatch(
        r"fsdp=16 is as good as any of 3 layouts on 16 ranks \([\d.]+ s, [\d.]+ GB of memory, "
        r"tight in 80 GB\): hsdp=2x8 is predicted fastest, by less than 1 %, within the error of "
        r"the plan; dp@25=16 \(\d+ GB\) does not fit",
        layouts_answer(compared).text,
    )


def test_layouts_share_the_uncertainty_of_the_computation():
    """The computation is taken at 36 to 60 % of the peak: each interval is wide, but a layout that
    exposes 40 % more is slower at any rate.
    """
    text = "fsdp,hsdp,fsdp+tp=8+sp"
    compared = torchcoll.compare_plans("llama-3-8b", text, ranks=64, machine="8xH100")
    best, *_, last = compared.rows
    assert last.layout.tp == 8 and last.step.step_ns[1] < best.step.step_ns[2]
    assert layouts_answer(compared).details == ("hsdp=8x8 (1.01x) may be as fast",)


def test_a_tight_layout_is_first_only_if_it_is_faster_by_more_than_5_percent():
    """Three layouts whose steps take 1.00, 1.04 and 1.20; the first is tight."""
    row = torchcoll.compare_plans("gpt2", "fsdp=8", machine="8xH100", step_ms=1).rows[0]

    def compared(*seconds):
        rows = []
        for text, s in zip(("fsdp=4,tp=4", "fsdp=8,tp=2", "dp=8"), seconds, strict=True):
            ends = (1e9 * s, 1e9 * s, 2e9)
            step = replace(row.step, step_ns=ends, at_rate_ns=ends)
            rows.append(replace(row, layout=parse_layout(text), step=step))
        rows[0] = replace(rows[0], fits="tight")
        return LayoutComparison("x", 16, sorted(rows, key=sort_key), "y", [], 80e9)

    answer = layouts_answer(compared(1.0, 1.04, 1.2))
    assert "fsdp=8,tp=2 is predicted fastest of those that surely fit (1.04 s" in answer.text
    # The interval of the last overlaps, but 1.2 times as long is not as fast.
    assert answer.details == ("fsdp=4,tp=4 (0.96x) may be as fast",)
    assert compared(1.0, 1.06, 1.2).rows[0].fits == "tight"


def test_of_equal_layouts_the_simplest_is_first():
    """At 7.98 s llama-3-70b has a layout with cp and one without."""
    row = torchcoll.compare_plans("gpt2", "fsdp=8+cp=2", machine="8xH100", step_ms=1).rows[0]
    without = replace(row, layout=parse_layout("fsdp=16"))
    assert sorted([row, without], key=sort_key)[0] is without


@pytest.mark.parametrize(
    ("layout", "layers", "expected"),
    [
        # As torchtitan 0.3.0 and Megatron-LM core 0.16 spell them.
        (
            "hsdp=2x4,tp=8,pp=2,sp,ckpt",
            32,
            "torchtitan: --parallelism.data_parallel_replicate_degree 2 "
            "--parallelism.data_parallel_shard_degree 4 --parallelism.tensor_parallel_degree 8 "
            "--parallelism.pipeline_parallel_degree 2 "
            "--parallelism.pipeline_parallel_microbatch_size 1 --training.local_batch_size 16 "
            "--training.global_batch_size 128 --training.seq_len 8192 activation_checkpoint:full",
        ),
        (
            "fsdp=8,pp=4x2,cp=2,sac",
            32,
            "--parallelism.pipeline_parallel_schedule Interleaved1F1B "
            "--parallelism.pipeline_parallel_layers_per_stage 4 "
            "--parallelism.pipeline_parallel_first_stage_less_layers 0 "
            "--parallelism.pipeline_parallel_last_stage_less_layers 0 "
            "--parallelism.context_parallel_degree 2 ",
        ),
        # 126 layers, the embedding and the head are 8 x 4 stages of 4.
        ("fsdp=8,pp=8x4", 126, "layers_per_stage 4 --training.local"),
        (
            "zero1=8,tp=8,pp=8x4,cp=2,sp,tp-overlap,ckpt",
            126,
            "Megatron-LM: --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 "
            "--num-virtual-stages-per-pipeline-rank 4 --account-for-embedding-in-pipeline-split "
            "--account-for-loss-in-pipeline-split --context-parallel-size 2 --sequence-parallel "
            "--tp-comm-overlap --use-distributed-optimizer --overlap-grad-reduce "
            "--overlap-param-gather --recompute-granularity full --recompute-method uniform "
            "--recompute-num-layers 1 --micro-batch-size 1 --seq-length 8192 "
            "--global-batch-size 128",
        ),
        ("fsdp=8,ep=8,deepep", 32, 'none, and moe_comm_backend="deepep" in its config'),
        (
            "zero1=8,ep=8,deepep",
            32,
            "--expert-model-parallel-size 8 --moe-token-dispatcher-type flex "
            "--moe-flex-dispatcher-backend deepep --use-distributed-optimizer",
        ),
        ("dp=8", 32, ""),
    ],
)
def test_flags_of_a_layout(layout, layers, expected):
    assert expected in launch_flags(parse_layout(layout), parse_batch("16x1x8192"), layers)
