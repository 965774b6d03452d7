"""Claims about training large models that are met in the field, each worked out with the performance model.

`make claims` (`python -m autotune.planning.claims`) prints claim, what the model says, verdict; with `--markdown` it
writes docs/claims.md.
"""

from autotune.planning.claims import memory, speeds, traffic
from autotune.planning.claims.claim import Claim, Verdict
from autotune.planning.claims.documents import to_markdown, to_text

__all__ = ["Claim", "Verdict", "claims", "to_markdown", "to_text"]

_CLAIMS = (
    speeds.speed_of_175b,
    speeds.days_of_530b,
    memory.savings_of_zero,
    memory.need_of_30b,
    traffic.zero_plus_plus,
    traffic.fp16_gradients,
    memory.sparse_attention,
    traffic.tensor_parallel_embedding,
    memory.partitioned_activations,
    memory.formula,
    memory.largest_micro_batch,
    speeds.full_memory,
    speeds.recommended_clusters,
)


def claims() -> tuple[Claim, ...]:
    """Work out every claim, in the order of docs/claims.md."""
    return tuple(make() for make in _CLAIMS)
