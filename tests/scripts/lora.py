"""Train a LoRA adapter on a frozen small Llama with the Hugging Face Trainer.

torchrun --nproc_per_node 2 lora.py --deepspeed hf_trainer.json --use_cpu --output_dir out --max_steps 2000
"""

from dataclasses import dataclass, field

import deepspeed
from hf_trainer import ModelArguments, make_model, make_trainer
from peft import LoraConfig, get_peft_model
from transformers import HfArgumentParser, TrainingArguments, set_seed


@dataclass
class AdapterArguments:
    """What the adapter is."""

    rank: int = field(default=8)


def main():
    parser = HfArgumentParser((ModelArguments, AdapterArguments, TrainingArguments))
    model_args, adapter_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    deepspeed.init_distributed()  # see hf_trainer.py
    adapter = LoraConfig(r=adapter_args.rank, target_modules="all-linear", modules_to_save=["lm_head"])
    model = get_peft_model(make_model(model_args), adapter)
    model.print_trainable_parameters()
    trainer = make_trainer(model, model_args, training_args)
    trainer.train()
    if training_args.save_strategy != "no":
        trainer.save_model()


if __name__ == "__main__":
    main()
