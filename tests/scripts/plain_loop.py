"""Train a small byte-level GPT with a plain DeepSpeed loop; the text is the Python standard library.

torchrun --nproc_per_node 2 plain_loop.py --deepspeed_config plain_loop.json
"""

import argparse
import sysconfig
import time
from pathlib import Path

import deepspeed
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Text(Dataset):
    """Pieces of the standard library's source, as bytes."""

    def __init__(self, sequence, first_byte=0, last_byte=2_000_000):
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = b"".join(path.read_bytes() for path in files)[first_byte:last_byte]
        self.sequence = sequence
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self):
        return (len(self.text) - 1) // self.sequence

    def __getitem__(self, index):
        start = index * self.sequence
        return self.text[start : start + self.sequence + 1].long()


class SmallGPT(nn.Module):
    """A causal transformer over bytes that returns its own loss."""

    def __init__(self, layers, width, heads, sequence):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.position = nn.Embedding(sequence, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", torch.full((sequence, sequence), float("-inf")).triu(1), persistent=False)

    def forward(self, batch):
        text, target = batch[:, :-1], batch[:, 1:]
        x = self.embedding(text) + self.position.weight
        logits = self.head(self.blocks(x, mask=self.mask.to(x.dtype), is_causal=True))
        return F.cross_entropy(logits.float().flatten(0, 1), target.flatten())


def make_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--max_steps", type=int, default=0, help="optimizer steps; 0 is all of --epochs")
    parser.add_argument("--eval_every", type=int, default=200, help="optimizer steps; 0 is never")
    parser.add_argument("--log_every", type=int, default=20, help="optimizer steps")
    parser.add_argument("--save_dir", help="where the final checkpoint goes")
    parser.add_argument("--seed", type=int, default=0)
    return deepspeed.add_config_arguments(parser)


def make_model(args):
    torch.manual_seed(args.seed)
    return SmallGPT(args.layers, args.width, args.heads, args.sequence)


def is_main():
    return torch.distributed.get_rank() == 0


def evaluate(engine, loader):
    engine.eval()
    with torch.no_grad():
        losses = [engine(batch.to(engine.device)) for batch in loader]
    engine.train()
    return torch.stack(losses).mean()


def backward(engine, loss):
    engine.backward(loss)


def train(engine, loader, args, backward=backward, on_step=None):
    """Run the epochs; `backward` and `on_step` are what the variants of this script change."""
    held_out = DataLoader(Text(args.sequence, 2_000_000, 2_020_000), batch_size=64)
    start = time.time()
    for epoch in range(args.epochs):
        loader.data_sampler.set_epoch(epoch)
        for batch in loader:
            loss = engine(batch.to(engine.device))
            if on_step:
                loss = on_step(engine, loss)
            backward(engine, loss)
            whole_batch = engine.is_gradient_accumulation_boundary()
            engine.step()
            if not whole_batch:
                continue
            step = engine.global_steps
            if step % args.log_every == 0 and is_main():
                print(f"step {step} loss {loss.item():.4f} {step / (time.time() - start):.1f} steps/s", flush=True)
            if args.eval_every and step % args.eval_every == 0:
                held_out_loss = evaluate(engine, held_out)
                if is_main():
                    print(f"step {step} held-out loss {held_out_loss.item():.4f}", flush=True)
            if step == args.max_steps:
                return


def finish(engine, args):
    if args.save_dir:
        engine.save_checkpoint(args.save_dir)
    if is_main():
        print(f"done: {engine.global_steps} steps, {engine.global_samples} samples", flush=True)
    engine.destroy()
    torch.distributed.destroy_process_group()


def main():
    args = make_parser().parse_args()
    deepspeed.init_distributed()
    model = make_model(args)
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=Text(args.sequence)
    )
    train(engine, loader, args)
    finish(engine, args)


if __name__ == "__main__":
    main()
