"""Train a small Llama over bytes with a loop of one's own under accelerate.

accelerate launch --config_file accelerate_loop.yaml accelerate_loop.py --cpu --max_steps 2000
"""

import argparse
import time

from accelerate import Accelerator, PartialState
from accelerate.utils import DummyOptim, set_seed
from hf_trainer import Text, make_model
from torch.utils.data import DataLoader


def make_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--max_steps", type=int, default=0, help="optimizer steps; 0 is all of --epochs")
    parser.add_argument("--log_every", type=int, default=20, help="optimizer steps")
    parser.add_argument("--cpu", action="store_true", help="train on CPUs")
    return parser


def main():
    args = make_parser().parse_args()
    if args.cpu:
        PartialState(cpu=True)  # a process group over gloo; Accelerator(cpu=True) would do without DeepSpeed
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(0)
    model = make_model(args)
    optimizer = DummyOptim(model.parameters(), lr=args.learning_rate)
    loader = DataLoader(Text(args.sequence), batch_size=args.per_device_train_batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step, start = 0, time.time()
    for _ in range(args.epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            step += 1
            if step % args.log_every == 0:
                speed = step / (time.time() - start)
                accelerator.print(f"step {step} loss {loss.item():.4f} {speed:.1f} steps/s", flush=True)
            if step == args.max_steps:
                accelerator.print(f"done: {step} steps", flush=True)
                accelerator.end_training()
                return
    accelerator.end_training()


if __name__ == "__main__":
    main()
