"""Parameters of models from their configs, against the counts that their makers publish."""

import json
from pathlib import Path

import pytest
from error_form import error_text
from parallel_models import llama_config

from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.parts.training.architectures import (
    LAYER,
    bundled_configs,
    model_table,
    parse_config,
    read_architecture,
)

# From the model cards, or the sizes of their safetensors files on Hugging Face.
PUBLISHED = {
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "gpt2": 124_439_808,
    "vit-base": 86_567_656,
    "bert-base": 109_514_298,  # BertForMaskedLM, without the pooler
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    assert read_architecture(name).parameters == PUBLISHED[name]


def test_deepseek_v3():
    """671B parameters, 37B of them for a token (arXiv 2412.19437)."""
    model = read_architecture("deepseek-v3")
    assert model.parameters == pytest.approx(671e9, rel=1e-3)
    assert model.active_parameters == pytest.approx(37e9, rel=0.02)
    assert [block.moe for block in model.layers] == [False] * 3 + [True] * 58


def test_mixtral_active_parameters():
    """13B (arXiv 2401.04088)."""
    assert read_architecture("mixtral-8x7b").active_parameters == pytest.approx(13e9, rel=0.02)


def test_each_bundled_config_loads():
    for name, config in bundled_configs().items():
        assert parse_config(config, name).parameters > 1e6


def public_configs():
    """(name, config without what nobody reads, parameters as transformers 5.24 counts them)."""
    table = json.loads(Path(__file__).with_name("public_configs.json").read_text())
    return [
        pytest.param(entry["config"], entry["parameters"], id=name) for name, entry in table.items()
    ]


@pytest.mark.parametrize(("config", "parameters"), public_configs())
def test_public_configs(config, parameters):
    """Equal to those of transformers by name, shape and order where it has the type."""
    assert parse_config(config, "x").parameters == parameters


def weights(config):
    return {w.name: w.shape for b in parse_config(config, "x").blocks for w in b.weights}


@pytest.mark.parametrize(
    ("changed", "name", "shape"),
    [
        ({"model_type": "qwen2"}, "model.layers.1.self_attn.k_proj.bias", (8,)),
        ({"model_type": "qwen3", "head_dim": 6}, "model.layers.0.self_attn.q_norm.weight", (6,)),
        ({"model_type": "olmo2"}, "model.layers.0.self_attn.k_norm.weight", (8,)),
        (
            {"model_type": "gemma2", "head_dim": 4},
            "model.layers.0.post_feedforward_layernorm.weight",
            (16,),
        ),
        ({"model_type": "phi3"}, "model.layers.0.self_attn.qkv_proj.weight", (32, 16)),
        ({"mlp_bias": True}, "model.layers.0.mlp.down_proj.bias", (16,)),
        (
            {"model_type": "qwen2_moe", "num_experts": 6, "moe_intermediate_size": 5},
            "model.layers.0.mlp.experts.gate_up_proj",
            (6, 10, 16),
        ),
        (
            {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 7},
            "model.layers.0.mlp.shared_expert.up_proj.weight",
            (7, 16),
        ),
    ],
)
def test_what_differs_between_families(changed, name, shape):
    assert weights(llama_config(**changed))[name] == shape


def test_tied_embeddings_are_one_parameter():
    untied = parse_config(llama_config(), "x").parameters
    tied = parse_config(llama_config(tie_word_embeddings=True), "x")
    assert untied - tied.parameters == 32 * 16
    # The product with the head's matrix is computed all the same.
    assert tied.active_elements(tied.blocks[-1]) == 32 * 16 + 16


def test_a_file_and_its_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(llama_config(torch_dtype="bfloat16")))
    of_folder = read_architecture(str(tmp_path))
    assert of_folder.blocks == read_architecture(str(tmp_path / "config.json")).blocks
    assert of_folder.dtype == "bfloat16"
    assert [block.kind for block in of_folder.blocks].count(LAYER) == 2


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({}, error_text("config", "no model_type", "the config of a transformer that plan knows")),
        ({"model_type": "t5"}, error_text("config", "model_type t5", "the config of a transf")),
        (
            {"_class_name": "SD3Transformer2DModel", "_diffusers_version": "0.29.0"},
            error_text("config", "a diffusers config (SD3Transformer2DModel)", "the config of a"),
        ),
        (
            {"model_type": "llama", "hidden_size": "x"},
            error_text("config", "hidden_size = x", "hidden_size, a whole number from 1 on"),
        ),
        (
            {"model_type": "llama"},
            error_text("config", "no hidden_size", "hidden_size, a whole number"),
        ),
        (
            llama_config(model_type="mixtral", num_experts_per_tok=9),
            error_text("config", "num_experts_per_tok = 9", "at most the 8 experts"),
        ),
    ],
)
def test_configs_that_are_refused(config, error):
    with pytest.raises(UsageError) as caught:
        parse_config(config, "x")
    assert str(caught.value).startswith(error)


def test_unknown_architectures_name_the_way_out():
    with pytest.raises(UsageError, match="MODULE:FACTORY"):
        parse_config({"model_type": "t5"}, "x")
    page = Path(__file__).parents[2].joinpath("docs", "plan.md").read_text("utf-8")
    for name in model_table()["types"]:
        assert f"`{name}`" in page


@pytest.mark.parametrize("text", ["{", "[1]", "\xff", "[" * 100_000])
def test_files_that_are_no_config(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UnreadableError) as caught:
        read_architecture(str(path))
    assert str(caught.value).startswith(error_text("config", str(path), ""))
    assert "\n" not in str(caught.value)


def test_a_misspelt_name():
    with pytest.raises(UsageError, match="llama-3-8b"):
        read_architecture("llama3-8b")
