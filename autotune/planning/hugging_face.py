"""The shape of a model from a Hugging Face config.json, with the number of parameters that the architecture has.

Each family's count is the sum over the modules of its class in transformers (src/transformers/models/<family>/
modeling_<family>.py): the model with its language head, BERT with its pooler and without a head, as published.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import WorkloadError
from autotune.performance import ModelShape

UNLIMITED_SEQUENCE = 2048
"""Where positions have no limit (ALiBi, rotary without a stated one): what BLOOM and Falcon were trained with."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_TWO_STACKS = ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "whisper", "led", "switch_transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a config.json says of a model; counts follow exactly."""

    parameters: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    vocabulary: int
    gated: bool
    tied: bool
    longest_sequence: int
    """Tokens that positions reach, or `UNLIMITED_SEQUENCE`."""

    def shape(self, *, sequence: int) -> ModelShape:
        """Return the shape at so many tokens per sample."""
        return ModelShape.from_numbers(
            parameters=float(self.parameters),
            layers=float(self.layers),
            hidden=float(self.hidden),
            heads=float(self.heads),
            kv_heads=float(self.kv_heads),
            ffn_hidden=float(self.ffn_hidden),
            vocabulary=float(self.vocabulary),
            gated=float(self.gated),
            tied=float(self.tied),
            sequence=float(sequence),
        )


def read(path: Path) -> Architecture:
    """Read a config.json, or the one in a folder.

    Raises:
        WorkloadError: when it can't be read, or is of a family whose parameters are not counted here.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkloadError(f"model: can't read {file} as JSON ({error}); give a Hugging Face config.json") from error
    if not isinstance(data, dict):
        raise WorkloadError(f"model: {file} holds {type(data).__name__}; a Hugging Face config.json is a mapping")
    return architecture(data, source=str(file))


def architecture(config: Mapping[str, Any], *, source: str = "config.json") -> Architecture:
    """Return what a configuration of transformers says.

    Args:
        config: as in config.json.
        source: for messages.

    Raises:
        WorkloadError: when the family is not counted here, has experts or two stacks, or a key is missing.
    """
    family = config.get("model_type")
    instead = "give numbers instead: --model layers=...,hidden=...,heads=...,vocabulary=..., or a module:function"
    if family is None:
        raise WorkloadError(f"model: {source} has no model_type, so it is no Hugging Face config.json; {instead}")
    if family in _TWO_STACKS or config.get("is_encoder_decoder"):
        raise WorkloadError(
            f"model: {source} is of {family}, an encoder with a decoder; the model knows one stack of equal layers; "
            f"estimate the larger of the two by numbers: --model layers=...,hidden=...,heads=...,vocabulary=..."
        )
    experts = next((name for name in _EXPERTS if isinstance(config.get(name), int) and config[name] > 1), None)
    if experts is not None:
        raise WorkloadError(
            f"model: {source} has {experts} = {config[experts]}, a mixture of experts; memory goes by all parameters "
            "and time by the active ones, which the model doesn't tell apart; it takes dense models only"
        )
    if family not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES))
        raise WorkloadError(f"model: {source} is of {family!r}; parameters are counted for {known}; {instead}")
    return _FAMILIES[family](_Keys(config=config, source=source))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """The keys of a configuration, each under the names it may have."""

    config: Mapping[str, Any]
    source: str

    def number(self, *names: str, default: int | None = None) -> int:
        found = next((self.config[name] for name in names if self.config.get(name) is not None), default)
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise WorkloadError(f"model: {self.source}: got {names[0]} = {found!r}; it must be a whole number above 0")
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        found = self.config.get(name)
        return default if found is None else bool(found)

    @property
    def tied(self) -> bool | None:
        found = self.config.get("tie_word_embeddings")
        return None if found is None else bool(found)


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _gpt2(keys: _Keys) -> Architecture:
    hidden, layers = keys.number("n_embd"), keys.number("n_layer")
    vocabulary, positions = keys.number("vocab_size"), keys.number("n_positions", "n_ctx", default=1024)
    ffn = keys.number("n_inner", default=4 * hidden)
    layer = _linear(hidden, 3 * hidden) + _linear(hidden, hidden) + _linear(hidden, ffn) + _linear(ffn, hidden)
    tied = keys.tied is not False
    return Architecture(
        parameters=vocabulary * hidden * (1 if tied else 2)
        + positions * hidden
        + layers * (layer + 4 * hidden)
        + 2 * hidden,
        layers=layers,
        hidden=hidden,
        heads=keys.number("n_head"),
        kv_heads=keys.number("n_head"),
        ffn_hidden=ffn,
        vocabulary=vocabulary,
        gated=False,
        tied=tied,
        longest_sequence=positions,
    )


def _llama(keys: _Keys, *, qkv_bias: bool | None = None, kv_default: int | None = None) -> Architecture:
    """Llama, Mistral, Qwen2: RMS norms, rotary positions, a gated feed-forward part, grouped keys and values."""
    hidden, layers, heads = (keys.number(n) for n in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    vocabulary, ffn = keys.number("vocab_size"), keys.number("intermediate_size")
    kv_heads = keys.number("num_key_value_heads", default=kv_default or heads)
    head = keys.number("head_dim", default=max(hidden // heads, 1))
    all_biased = keys.flag("attention_bias", default=False) and qkv_bias is None
    biased = all_biased if qkv_bias is None else qkv_bias
    mlp_bias = keys.flag("mlp_bias", default=False) and qkv_bias is None
    layer = _linear(hidden, heads * head, bias=biased) + 2 * _linear(hidden, kv_heads * head, bias=biased)
    layer += _linear(heads * head, hidden, bias=all_biased)
    layer += 2 * _linear(hidden, ffn, bias=mlp_bias) + _linear(ffn, hidden, bias=mlp_bias)
    tied = bool(keys.tied)
    return Architecture(
        parameters=vocabulary * hidden * (1 if tied else 2) + layers * (layer + 2 * hidden) + hidden,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn_hidden=ffn,
        vocabulary=vocabulary,
        gated=True,
        tied=tied,
        longest_sequence=keys.number("max_position_embeddings", default=UNLIMITED_SEQUENCE),
    )


def _mistral(keys: _Keys) -> Architecture:
    return _llama(keys, qkv_bias=False, kv_default=8)


def _qwen2(keys: _Keys) -> Architecture:
    return _llama(keys, qkv_bias=True)


def _bert(keys: _Keys) -> Architecture:
    """BertModel: embeddings of words, positions and segments, the layers, the pooler."""
    hidden, layers, heads = (keys.number(n) for n in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    vocabulary, ffn = keys.number("vocab_size"), keys.number("intermediate_size")
    positions = keys.number("max_position_embeddings", default=512)
    segments = keys.number("type_vocab_size", default=2)
    layer = 4 * _linear(hidden, hidden) + _linear(hidden, ffn) + _linear(ffn, hidden) + 4 * hidden
    return Architecture(
        parameters=(vocabulary + positions + segments) * hidden + 2 * hidden + layers * layer + _linear(hidden, hidden),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn_hidden=ffn,
        vocabulary=vocabulary,
        gated=False,
        tied=True,
        longest_sequence=positions,
    )


def _opt(keys: _Keys) -> Architecture:
    hidden, layers, heads = (keys.number(n) for n in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    vocabulary, ffn = keys.number("vocab_size"), keys.number("ffn_dim")
    positions = keys.number("max_position_embeddings", default=2048)
    word = keys.number("word_embed_proj_dim", default=hidden)
    bias = keys.flag("enable_bias", default=True)
    layer = 4 * _linear(hidden, hidden, bias=bias) + _linear(hidden, ffn, bias=bias) + _linear(ffn, hidden, bias=bias)
    norms_have_weights = keys.flag("layer_norm_elementwise_affine", default=True)
    last_norm = keys.flag("do_layer_norm_before", default=True) and not keys.flag(
        "_remove_final_layer_norm", default=False
    )
    tied = keys.tied is not False
    return Architecture(
        parameters=vocabulary * word * (1 if tied else 2)
        + (positions + 2) * hidden  # OPTLearnedPositionalEmbedding keeps two rows for padding
        + layers * (layer + (4 * hidden if norms_have_weights else 0))
        + (2 * hidden if last_norm and norms_have_weights else 0)
        + (2 * word * hidden if word != hidden else 0),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn_hidden=ffn,
        vocabulary=vocabulary,
        gated=False,
        tied=tied,
        longest_sequence=positions,
    )


def _bloom(keys: _Keys) -> Architecture:
    hidden, layers = keys.number("hidden_size", "n_embed"), keys.number("n_layer", "num_hidden_layers")
    vocabulary, heads = keys.number("vocab_size"), keys.number("n_head", "num_attention_heads")
    layer = _linear(hidden, 3 * hidden) + _linear(hidden, hidden)
    layer += _linear(hidden, 4 * hidden) + _linear(4 * hidden, hidden) + 4 * hidden
    tied = keys.tied is not False
    return Architecture(
        parameters=vocabulary * hidden * (1 if tied else 2) + 2 * hidden + layers * layer + 2 * hidden,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn_hidden=4 * hidden,
        vocabulary=vocabulary,
        gated=False,
        tied=tied,
        longest_sequence=keys.number("seq_length", default=UNLIMITED_SEQUENCE),
    )


def _gpt_neox(keys: _Keys) -> Architecture:
    hidden, layers, heads = (keys.number(n) for n in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    vocabulary, ffn = keys.number("vocab_size"), keys.number("intermediate_size")
    bias = keys.flag("attention_bias", default=True)
    layer = _linear(hidden, 3 * hidden, bias=bias) + _linear(hidden, hidden, bias=bias)
    layer += _linear(hidden, ffn) + _linear(ffn, hidden) + 4 * hidden
    tied = bool(keys.tied)
    return Architecture(
        parameters=vocabulary * hidden * (1 if tied else 2) + layers * layer + 2 * hidden,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn_hidden=ffn,
        vocabulary=vocabulary,
        gated=False,
        tied=tied,
        longest_sequence=keys.number("max_position_embeddings", default=UNLIMITED_SEQUENCE),
    )


def _falcon(keys: _Keys) -> Architecture:
    """Falcon 7B (one key and value head), 40B and 180B (grouped, two norms a layer); rw models with biases."""
    hidden, layers = keys.number("hidden_size"), keys.number("num_hidden_layers", "n_layer")
    heads, vocabulary = keys.number("num_attention_heads", "n_head"), keys.number("vocab_size")
    is_new = keys.flag("new_decoder_architecture", default=False)
    multi_query = keys.flag("multi_query", default=True)
    kv_heads = keys.number("num_kv_heads", "n_head_kv", default=heads) if is_new else 1 if multi_query else heads
    bias = keys.flag("bias", default=False)
    ffn = keys.number("ffn_hidden_size", default=4 * hidden)
    head = hidden // heads
    layer = _linear(hidden, hidden + 2 * kv_heads * head, bias=bias) + _linear(hidden, hidden, bias=bias)
    layer += _linear(hidden, ffn, bias=bias) + _linear(ffn, hidden, bias=bias)
    norms = keys.number("num_ln_in_parallel_attn", default=2) if is_new else 1
    norms = norms if is_new or keys.flag("parallel_attn", default=True) else 2
    tied = keys.tied is not False
    return Architecture(
        parameters=vocabulary * hidden * (1 if tied else 2) + layers * (layer + norms * 2 * hidden) + 2 * hidden,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn_hidden=ffn,
        vocabulary=vocabulary,
        gated=False,
        tied=tied,
        longest_sequence=keys.number("max_position_embeddings", default=UNLIMITED_SEQUENCE),
    )


_FAMILIES: Mapping[str, Callable[[_Keys], Architecture]] = {
    "bert": _bert,
    "bloom": _bloom,
    "falcon": _falcon,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "opt": _opt,
    "qwen2": _qwen2,
}
