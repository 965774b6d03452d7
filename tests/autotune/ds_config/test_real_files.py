"""Real configuration files: the verdict on each, and DeepSpeed's own word on what is accepted."""

import csv
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from autotune import ds_config
from autotune.ds_config import Severity, Target, Verdict, fixing, lint, schema

ROOT = Path(__file__).parents[3]
FILES = ROOT / "tests" / "data" / "ds_configs"
ACCEPTED, WARNED, MENDED, REFUSED = Verdict.ACCEPTED, Verdict.WARNED, Verdict.MENDED, Verdict.REFUSED
VERDICTS = {
    "CarperAI__trlx__ds_config_gpt_j.json": (MENDED, {"gone", "offload-stage"}),
    "EleutherAI__gpt-neox__small_tune.json": (REFUSED, {"search-space", "unknown-key"}),
    "LAION-AI__Open-Assistant__zero3_config_sft.json": (ACCEPTED, set()),
    "OpenGVLab__InternVL__adam_zero3_fp16.json": (REFUSED, {"removed"}),
    "OpenLMLab__LOMO__ds_config.json": (ACCEPTED, set()),
    "QwenLM__Qwen__ds_config_zero3.json": (ACCEPTED, set()),
    "axolotl-ai-cloud__axolotl__zero1_torch_compile.json": (MENDED, {"gone"}),
    "axolotl-ai-cloud__axolotl__zero2.json": (ACCEPTED, set()),
    "baichuan-inc__Baichuan2__ds_config.json": (ACCEPTED, set()),
    "bigscience-workshop__bigscience__ds_zero2.json": (WARNED, {"moved"}),
    "databrickslabs__dolly__a10_config.json": (ACCEPTED, set()),
    "deepseek-ai__DeepSeek-Coder__ds_config_zero3.json": (ACCEPTED, set()),
    "deepspeedai__DeepSpeedExamples__bf16_full.json": (ACCEPTED, set()),
    "deepspeedai__DeepSpeedExamples__deepspeed_bsz4k_progressive_layer_drop_config_seq128.json": (MENDED, {"removed"}),
    "deepspeedai__DeepSpeedExamples__deepspeed_bsz64k_onebitlamb_config_seq128_nccl.json": (REFUSED, {"removed"}),
    "deepspeedai__DeepSpeedExamples__deepspeed_onebitadam_bsz96_config.json": (REFUSED, {"removed"}),
    "deepspeedai__DeepSpeedExamples__ds_config.json": (ACCEPTED, set()),
    "deepspeedai__DeepSpeedExamples__ds_config_gpt_base_random_ltd.json": (ACCEPTED, set()),
    "deepspeedai__DeepSpeedExamples__ds_config_tune.json": (ACCEPTED, set()),
    "deepspeedai__DeepSpeedExamples__ds_offload_nvme_aio.json": (MENDED, {"auto"}),
    "deepspeedai__DeepSpeed__deepspeed_bsz24_fp16_eigenvalue_quantize_config.json": (MENDED, {"removed"}),
    "deepspeedai__DeepSpeed__ds_config_func_bs8_zero2_offload.json": (WARNED, {"moved"}),
    "deepspeedai__DeepSpeed__ds_config_zero3.json": (WARNED, {"no-effect"}),
    "deepspeedai__Megatron-DeepSpeed__ds_config.json": (ACCEPTED, set()),
    "deepspeedai__Megatron-DeepSpeed__ds_zero_stage_1_config_curriculum_fixed_linear.json": (
        MENDED,
        {"max-grad-norm", "not-json", "placeholder", "removed"},
    ),
    "haotian-liu__LLaVA__zero3_offload.json": (ACCEPTED, set()),
    "hiyouga__LLaMA-Factory__ds_z0_config.json": (WARNED, {"no-effect"}),
    "hiyouga__LLaMA-Factory__ds_z3_offload_config.json": (ACCEPTED, set()),
    "huggingface__accelerate__sp-alst.ds-config.json": (ACCEPTED, set()),
    "huggingface__accelerate__zero_stage1_config.json": (ACCEPTED, set()),
    "huggingface__accelerate__zero_stage3_offload_config.json": (ACCEPTED, set()),
    "huggingface__alignment-handbook__zero3.yaml": (ACCEPTED, set()),
    "huggingface__transformers__deepspeed_md_zero2_example.json": (REFUSED, {"batch-missing", "not-json"}),
    "huggingface__transformers__ds_config_zero2.json": (ACCEPTED, set()),
    "huggingface__transformers__ds_config_zero2_bf16.json": (MENDED, {"moved"}),
    "huggingface__transformers__ds_config_zero3.json": (WARNED, {"moved"}),
    "huggingface__trl__deepspeed_zero3.yaml": (ACCEPTED, set()),
    "lm-sys__FastChat__deepspeed_config_s3.json": (ACCEPTED, set()),
    "modelscope__ms-swift__zero3_offload.json": (ACCEPTED, set()),
}
"""The verdict, and the rules that found more than a note."""
ONLY_THE_ENGINE_REFUSES = {
    "OpenGVLab__InternVL__adam_zero3_fp16.json",
    "deepspeedai__DeepSpeedExamples__deepspeed_bsz64k_onebitlamb_config_seq128_nccl.json",
    "deepspeedai__DeepSpeedExamples__deepspeed_onebitadam_bsz96_config.json",
}
"""1-bit optimizers: `DeepSpeedConfig` takes them, `DeepSpeedEngine` doesn't."""
LOADS = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from deepspeed.runtime.config import DeepSpeedConfig
answers = {}
for name, config in json.load(sys.stdin).items():
    try:
        DeepSpeedConfig(config)
        answers[name] = ""
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"
print("ANSWER" + json.dumps(answers))
"""


def index():
    with (FILES / "index.csv").open(newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def test_every_file_has_a_verdict():
    assert set(VERDICTS) == set(index()) == {path.name for path in FILES.iterdir()} - {"index.csv", "README.md"}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict(name):
    report = lint(str(FILES / name), deepspeed=schema.data()["deepspeed"])
    verdict, codes = VERDICTS[name]
    assert report.verdict is verdict
    assert {finding.code for finding in report.findings if finding.severity is not Severity.NOTE} == codes
    for finding in report.findings:
        assert finding.line >= 1
        assert finding.rule
        assert finding.fix


@pytest.mark.parametrize("name", VERDICTS)
def test_a_campaign_reads_it(name):
    assert ds_config.read(FILES / name)


@pytest.mark.parametrize("name", VERDICTS)
def test_lines_are_those_of_the_keys(name):
    lines = (FILES / name).read_text().splitlines()
    for finding in lint(str(FILES / name)).findings:
        if finding.path and isinstance(finding.path[-1], str):
            assert finding.path[-1] in lines[finding.line - 1]


def test_deepspeed_loads_what_is_accepted_and_what_is_mended():
    """Each file as DeepSpeed on its own reads it, on one rank."""
    refused, accepted = {}, {}
    for name in VERDICTS:
        if name.endswith(".yaml"):
            continue
        report = lint(str(FILES / name), target=Target.DEEPSPEED, ranks=1)
        before = ds_config.parse((FILES / name).read_text(), source=name)
        if report.verdict in (ACCEPTED, WARNED):
            accepted[name] = before
        else:
            refused[name] = before
            if report.verdict is MENDED:
                assert report.after is not None
                accepted[f"mended {name}"] = json.loads(fixing.text_of(report.after))
    asked = json.dumps(accepted | {f"refused {name}": config for name, config in refused.items()})
    program = [sys.executable, "-W", "ignore", "-c", LOADS]
    done = subprocess.run(program, input=asked, capture_output=True, text=True, timeout=300)
    assert "ANSWER" in done.stdout, done.stderr
    answers = json.loads(done.stdout.split("ANSWER")[1])
    assert {name: answers[name] for name in accepted if answers[name]} == {}
    loads = {name for name in refused if not answers[f"refused {name}"]}
    assert loads == ONLY_THE_ENGINE_REFUSES


def test_the_page_is_what_lint_says():
    made = runpy.run_path(str(ROOT / "docs" / "make_ds_configs.py"))
    text = made["page"]()
    assert (ROOT / "docs" / "ds_configs.md").read_text() == text, "run python docs/make_ds_configs.py"
