"""The shape of a transformer, and what follows from it: parameters by part, floating-point operations per sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.errors import WorkloadError
from autotune.performance.arrays import Array, Numbers

ASPECT = 128.0
"""Hidden size over layers where neither is given: GPT-3 175B has 12288 / 96 = 128 (Brown et al. 2020, Table 2.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder or encoder stack. Each field is one number, or an array with one entry per configuration."""

    parameters: Numbers
    trainable: Numbers
    """Parameters with a gradient and optimizer states: all, or those of an adapter (LoRA)."""
    layers: Numbers
    hidden: Numbers
    heads: Numbers
    kv_heads: Numbers
    ffn_hidden: Numbers
    sequence: Numbers
    """Tokens per sample."""
    vocabulary: Numbers
    gated: Numbers = 0.0
    """1 where the feed-forward part has a gate (SwiGLU), that is three matrices; else 0."""
    tied: Numbers = 1.0
    """1 where input and output embeddings are one matrix, else 0."""
    predicted_fraction: Numbers = 1.0
    """Share of positions whose logits over the vocabulary are computed: 1 for a language model, about .15 for masked
    ones (Devlin et al. 2019, section 3.1), 0 for a classifier."""

    @classmethod
    def from_numbers(
        cls,
        *,
        parameters: Numbers | None = None,
        layers: Numbers | None = None,
        hidden: Numbers | None = None,
        heads: Numbers | None = None,
        sequence: Numbers,
        vocabulary: Numbers,
        trainable: Numbers | None = None,
        kv_heads: Numbers | None = None,
        ffn_hidden: Numbers | None = None,
        gated: Numbers = 0.0,
        tied: Numbers = 1.0,
        predicted_fraction: Numbers = 1.0,
    ) -> ModelShape:
        """Return a shape; what is not given is derived as in a GPT.

        P = 12 l h^2 + V h without the small terms (Narayanan et al. 2021, section 2.4): `parameters` follow from layers
        and hidden size, layers from parameters and hidden size, both from parameters at an aspect of 128. Heads are
        64 wide up to a hidden size of 2048 and 128 wide above; the feed-forward width is 4 h.

        Raises:
            WorkloadError: when neither parameters nor layers and hidden size are given, or a number is not positive.
        """
        if parameters is None and (layers is None or hidden is None):
            raise WorkloadError(
                "model shape: got neither parameters nor both layers and hidden; give parameters, or layers and hidden"
            )
        if hidden is None:
            blocks = np.maximum(np.asarray(parameters), 1.0)
            if layers is None:
                hidden = 64.0 * np.maximum(np.round((blocks * ASPECT / 12.0) ** (1.0 / 3.0) / 64.0), 1.0)
            else:
                hidden = 64.0 * np.maximum(np.round(np.sqrt(blocks / (12.0 * layers)) / 64.0), 1.0)
        if layers is None:
            layers = np.maximum(np.round((np.asarray(parameters) - vocabulary * hidden) / (12.0 * hidden**2)), 1.0)
        if parameters is None:
            parameters = 12.0 * layers * hidden**2 + vocabulary * hidden * (2.0 - tied)
        if heads is None:
            heads = np.maximum(np.round(hidden / np.where(np.asarray(hidden) > 2048, 128.0, 64.0)), 1.0)
        shape = cls(
            parameters=parameters,
            trainable=parameters if trainable is None else trainable,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=heads if kv_heads is None else kv_heads,
            ffn_hidden=4.0 * hidden if ffn_hidden is None else ffn_hidden,
            sequence=sequence,
            vocabulary=vocabulary,
            gated=gated,
            tied=tied,
            predicted_fraction=predicted_fraction,
        )
        for name in ("parameters", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "sequence", "vocabulary"):
            value = np.asarray(getattr(shape, name))
            if not np.all(value > 0):
                raise WorkloadError(f"model shape: got {name} = {value.min()}; it must be above 0")
        return shape

    @property
    def trainable_fraction(self) -> Array:
        return np.minimum(np.asarray(self.trainable) / self.parameters, 1.0)

    @property
    def embedding_parameters(self) -> Array:
        """V h of one embedding matrix."""
        return np.asarray(self.vocabulary * self.hidden)

    @property
    def layer_parameters(self) -> Array:
        """Parameters of one layer: what the embeddings leave, shared evenly.

        Where the count given is too small for that (a rounded figure, or a vocabulary that isn't the model's), the
        layer's own matrices count: attention h^2 (2 + 2 kv/a), feed-forward 2 or 3 h f.
        """
        rest = (self.parameters - self.embedding_parameters * (2.0 - np.asarray(self.tied))) / self.layers
        return np.where(rest > 0.5 * self.matrix_parameters, rest, self.matrix_parameters)

    @property
    def matrix_parameters(self) -> Array:
        """Elements of one layer's matrices by its widths."""
        attention = np.asarray(self.hidden) ** 2 * (2.0 + 2.0 * self.kv_heads / self.heads)
        return attention + self.hidden * self.ffn_hidden * (2.0 + self.gated)

    @property
    def layer_matrix_flops(self) -> Array:
        """Forward, one layer, one sample: 2 N s."""
        return 2.0 * self.layer_parameters * self.sequence

    @property
    def layer_attention_flops(self) -> Array:
        """Forward, one layer, one sample: Q K^T and its product with V, 4 s^2 h."""
        return 4.0 * np.asarray(self.sequence) ** 2 * self.hidden

    @property
    def logit_flops(self) -> Array:
        """Forward, one sample: 2 s V h."""
        return 2.0 * self.sequence * self.embedding_parameters * self.predicted_fraction

    @property
    def model_flops(self) -> Array:
        """Forward and backward of one sample, without recomputation: 3 x forward where all parameters train.

        72 s l h^2 (1 + s/(6h) + V/(12 l h)) for a GPT, attention over the full square (Narayanan
        et al. 2021, appendix).
        A frozen weight needs no gradient of its own, so backward's half falls away with it.
        """
        weights = self.layers * self.layer_matrix_flops + self.logit_flops
        attention = self.layers * self.layer_attention_flops
        return weights * (2.0 + self.trainable_fraction) + 3.0 * attention

    def recomputed_flops(self, checkpointing: Numbers) -> Array:
        """One sample's extra forward operations, by the code of `Configurations.checkpointing`.

        1 (full): every layer once more, logits not. 2 (selective): attention's products only (Korthikanti et al.
        2022, section 5).
        """
        attention = self.layers * self.layer_attention_flops
        full = self.layers * self.layer_matrix_flops + attention
        return np.where(np.asarray(checkpointing) == 1, full, 0.0) + np.where(
            np.asarray(checkpointing) == 2, attention, 0.0
        )
