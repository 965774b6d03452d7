"""Train with a loader of the script's own, whose batch size is an argument that the configuration doesn't know of.

torchrun --nproc_per_node 2 own_batches.py --deepspeed_config plain_loop.json --micro 8
"""

import deepspeed
from plain_loop import Text, finish, make_model, make_parser
from torch.utils.data import DataLoader


def main():
    parser = make_parser()
    parser.add_argument("--micro", type=int, default=8, help="sequences in one micro-batch")
    args = parser.parse_args()
    deepspeed.init_distributed()
    model = make_model(args)
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    for batch in DataLoader(Text(args.sequence), batch_size=args.micro):
        engine.backward(engine(batch.to(engine.device)))
        engine.step()
    finish(engine, args)


if __name__ == "__main__":
    main()
