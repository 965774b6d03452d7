"""Parameters that follow from a Hugging Face config.json are the published number, to the last one."""

import json

import pytest

from autotune.errors import WorkloadError
from autotune.planning import hugging_face
from autotune.planning.hugging_face import architecture

GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
LLAMA = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
BERT = {
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "max_position_embeddings": 512, "type_vocab_size": 2,
}  # fmt: skip
QWEN = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
OPT = {
    "model_type": "opt", "vocab_size": 50272, "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "max_position_embeddings": 2048, "word_embed_proj_dim": 768,
    "do_layer_norm_before": True,
}  # fmt: skip
BLOOM = {"model_type": "bloom", "vocab_size": 250880, "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16}
NEOX = {
    "model_type": "gpt_neox", "vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576,
    "num_hidden_layers": 44, "num_attention_heads": 64, "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
    "num_attention_heads": 71, "multi_query": True, "parallel_attn": True, "bias": False,
    "new_decoder_architecture": False,
}  # fmt: skip
PUBLISHED = {
    "gpt2": (GPT2, 124_439_808),
    "gpt2-medium": (GPT2 | {"n_embd": 1024, "n_layer": 24, "n_head": 16}, 354_823_168),
    "gpt2-xl": (GPT2 | {"n_embd": 1600, "n_layer": 48, "n_head": 25}, 1_557_611_200),
    "Llama-2-7B": (LLAMA, 6_738_415_616),
    "Llama-2-13B": (
        LLAMA | {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40},
        13_015_864_320,
    ),
    "Llama-3-8B": (
        LLAMA | {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8}, 8_030_261_248,
    ),
    "Mistral-7B": (
        LLAMA | {"model_type": "mistral", "intermediate_size": 14336, "num_key_value_heads": 8}, 7_241_732_096,
    ),
    "Qwen2-0.5B": (QWEN, 494_032_768),
    "Qwen2-7B": (
        QWEN | {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False},
        7_615_616_512,
    ),
    "bert-base-uncased": (BERT, 109_482_240),
    "bert-large-uncased": (
        BERT | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
        335_141_888,
    ),
    "opt-125m": (OPT, 125_239_296),
    "opt-350m": (
        OPT | {"hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "word_embed_proj_dim": 512,
               "num_attention_heads": 16, "do_layer_norm_before": False},
        331_196_416,
    ),
    "bloom-560m": (BLOOM, 559_214_592),
    "bloom": (BLOOM | {"n_embed": 14336, "n_layer": 70, "num_attention_heads": 112}, 176_247_271_424),
    "gpt-neox-20b": (NEOX, 20_554_567_680),
    "pythia-70m": (
        NEOX | {"vocab_size": 50304, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
                "num_attention_heads": 8},
        70_426_624,
    ),
    "falcon-7b": (FALCON, 6_921_720_704),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_number(name):
    config, parameters = PUBLISHED[name]
    assert architecture(config).parameters == parameters


def test_widths_of_llama_3():
    found = architecture(PUBLISHED["Llama-3-8B"][0])
    assert (found.layers, found.hidden, found.heads, found.kv_heads) == (32, 4096, 32, 8)
    assert (found.ffn_hidden, found.gated, found.tied, found.longest_sequence) == (14336, True, False, 4096)


def test_a_shape_of_it_has_the_same_count():
    shape = architecture(LLAMA).shape(sequence=2048)
    assert shape.parameters == 6_738_415_616
    assert shape.sequence == 2048


def test_a_folder_or_its_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    assert hugging_face.read(tmp_path) == hugging_face.read(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "t5", "d_model": 512}, ["t5", "encoder with a decoder"]),
        (LLAMA | {"model_type": "mixtral", "num_local_experts": 8}, ["num_local_experts = 8", "mixture of experts"]),
        ({"model_type": "resnet"}, ["'resnet'", "bert, bloom, falcon"]),
        ({"hidden_size": 3}, ["model_type"]),
        ({key: value for key, value in GPT2.items() if key != "n_layer"}, ["n_layer = None", "above 0"]),
        (GPT2 | {"n_embd": "768"}, ["n_embd = '768'"]),
    ],
)
def test_what_cannot_be_counted_is_refused_with_the_reason(config, words):
    with pytest.raises(WorkloadError) as refusal:
        architecture(config)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_file_that_is_none(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WorkloadError, match=r"config\.json"):
        hugging_face.read(tmp_path)
