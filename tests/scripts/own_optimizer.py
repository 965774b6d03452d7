"""Train the small byte-level GPT with an optimizer and a schedule that this script makes itself.

torchrun --nproc_per_node 2 own_optimizer.py --deepspeed_config own_optimizer.json
"""

import deepspeed
import torch
from plain_loop import Text, finish, make_model, make_parser, train
from torch.optim.lr_scheduler import LambdaLR


def torch_style_backward(engine, loss):
    """The loss's own backward; DeepSpeed divides by the accumulation steps and reduces the gradients in hooks."""
    engine.scale(loss).backward()


def main():
    parser = make_parser()
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--warmup_steps", type=int, default=10)
    parser.add_argument("--torch_style_backward", action="store_true", help="needs ZeRO stage 1, 2 or 3")
    args = parser.parse_args()
    deepspeed.init_distributed()
    model = make_model(args)
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=args.learning_rate
    )
    scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / args.warmup_steps))
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, optimizer=optimizer, lr_scheduler=scheduler, training_data=Text(args.sequence)
    )
    if args.torch_style_backward:
        train(engine, loader, args, backward=torch_style_backward)
    else:
        train(engine, loader, args)
    finish(engine, args)


if __name__ == "__main__":
    main()
