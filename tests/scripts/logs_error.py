"""Train as plain_loop.py does, while the log holds words that look like a failure and are none.

torchrun --nproc_per_node 2 logs_error.py --deepspeed_config plain_loop.json
"""

import logging
import sys
import traceback
import warnings

import deepspeed
from plain_loop import Text, finish, make_model, make_parser, train

log = logging.getLogger("training")


def look_like_a_failure(engine, loss):
    """Say what a retry in a data loader or a memory check says on a good day."""
    if engine.micro_steps % 10 == 0:
        log.error("ERROR: shard 3 could not be read, trying again")
        warnings.warn("CUDA out of memory. Tried to allocate 20.00 GiB (fell back to the slow path)", stacklevel=1)
        print("torch.OutOfMemoryError: CUDA out of memory (caught; batch split)", file=sys.stderr, flush=True)
        try:
            raise OSError("No space left on device")
        except OSError:
            traceback.print_exc()
    return loss


def main():
    logging.basicConfig(level=logging.INFO)
    warnings.simplefilter("always")
    args = make_parser().parse_args()
    model = make_model(args)
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=Text(args.sequence)
    )
    train(engine, loader, args, on_step=look_like_a_failure)
    finish(engine, args)


if __name__ == "__main__":
    main()
