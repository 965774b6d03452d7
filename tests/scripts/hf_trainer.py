"""Train a small Llama over bytes with the Hugging Face Trainer; the text is the Python standard library.

torchrun --nproc_per_node 2 hf_trainer.py --deepspeed hf_trainer.json --use_cpu --output_dir out --max_steps 2000
"""

import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import deepspeed
import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, HfArgumentParser, LlamaConfig, Trainer, TrainingArguments, set_seed


@dataclass
class ModelArguments:
    """What the model is, and how much of the text one sample holds."""

    layers: int = field(default=2)
    width: int = field(default=64)
    heads: int = field(default=4)
    sequence: int = field(default=64)


class Text(Dataset):
    """Pieces of the standard library's source, one token per byte."""

    def __init__(self, sequence, first_byte=0, last_byte=2_000_000):
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = b"".join(path.read_bytes() for path in files)[first_byte:last_byte]
        self.sequence = sequence
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self):
        return len(self.text) // self.sequence

    def __getitem__(self, index):
        tokens = self.text[index * self.sequence : (index + 1) * self.sequence].long()
        return {"input_ids": tokens, "labels": tokens}


def make_model(arguments):
    """Return the model; where a ds_config of ZeRO-3 was read, its parameters are partitioned from the start."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=arguments.width,
        intermediate_size=4 * arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        max_position_embeddings=arguments.sequence,
        bos_token_id=None,
        eos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config)


def make_trainer(model, model_args, training_args):
    return Trainer(
        model=model,
        args=training_args,
        train_dataset=Text(model_args.sequence),
        eval_dataset=Text(model_args.sequence, 2_000_000, 2_010_000),
    )


def main():
    model_args, training_args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(training_args.seed)
    deepspeed.init_distributed()  # on CPUs the Trainer does this too late for ZeRO-3's partitioned model
    trainer = make_trainer(make_model(model_args), model_args, training_args)
    trainer.train()
    if training_args.save_strategy != "no":
        trainer.save_model()


if __name__ == "__main__":
    main()
