"""Estimates by stage and offload: states as the ZeRO paper counts them, parts that add up, verdicts in words."""

import json

import numpy as np
import pytest

from autotune.errors import ConfigError
from autotune.planning import Options, estimates, named_hardware, named_model, settings, tables, wording
from autotune.planning.estimates import GIB, Row

GB = 1e9


def made(size="7B", hardware="8 x A100-80GB", config=None, **options):
    asked, place = named_model(size), named_hardware(hardware)
    return estimates(asked, place, settings(asked, place, config=config, options=Options(**options)))


def row(found, stage, offload="none"):
    return next(one for one in found.rows if (one.stage, one.offload) == (stage, offload))


def states(one):
    return sum(one.memory_bytes[part] for part in ("parameters", "gradients", "optimizer")) / GB


def test_states_of_7b_on_8_devices():
    found = made()
    # 16 P; 4 P + 12 P/8; 2 P + 14 P/8; 16 P/8 (Rajbhandari et al. 2020, section 3)
    expected = {0: 112.0, 1: 28.0 + 10.5, 2: 14.0 + 12.25, 3: 14.0}
    for stage, amount in expected.items():
        assert states(row(found, stage)) == pytest.approx(amount, rel=2e-3)
    assert row(found, 3, "both").memory_bytes["parameters"] == 0
    assert row(found, 2, "optimizer").memory_bytes["optimizer"] == 0
    # 16 bytes a parameter, and a buffer that DeepSpeed's estimators put at half as much again
    assert 7 * 16 < row(found, 2, "optimizer").host_bytes / GB < 2 * 7 * 16


@pytest.mark.parametrize(
    ("parallel", "stage", "days", "said"),
    [
        ({"tensor_parallel": 8, "pipeline_parallel": 12, "accumulation": 96}, 0, 23, 27),
        ({}, 3, 74, 53),
    ],
)
def test_days_that_were_published(parallel, stage, days, said):
    """174.6B on 1,536 A100 for 300B tokens (Narayanan et al. 2021, table 2); docs/estimate.md says what comes out."""
    found = made(
        "layers=96,hidden=12288,heads=96,vocabulary=51200,parameters=174.6B", "1536 x A100-80GB",
        checkpointing="full", flash_attention=False, precision="fp16", **parallel,
    )  # fmt: skip
    one = row(found, stage)
    assert one.fits
    estimated = 300e9 / one.tokens_per_second / 86400
    assert estimated == pytest.approx(said, abs=0.5)
    assert 0.6 < estimated / days < 1.2


def test_parts_add_up():
    for one in made(checkpointing="full", micro_batch=2, accumulation=4).rows:
        assert sum(one.memory_bytes.values()) == pytest.approx(one.needed_bytes)
        assert sum(one.time_s.values()) == pytest.approx(one.step_time_s)
        assert all(amount >= 0 for amount in (*one.memory_bytes.values(), *one.time_s.values()))


def test_throughput_follows_from_the_step():
    one = row(made(micro_batch=2, accumulation=4), 1)
    assert one.samples_per_second == pytest.approx(2 * 4 * 8 / one.step_time_s)
    assert one.tokens_per_second == pytest.approx(2048 * one.samples_per_second)
    assert one.utilization == pytest.approx(one.model_tflops / 312, rel=1e-6)


def test_the_largest_micro_batch_fits_and_its_double_does_not():
    largest = row(made(), 2).largest_micro_batch
    assert largest >= 2
    assert row(made(micro_batch=largest), 2).fits
    assert not row(made(micro_batch=2 * largest), 2).fits


def test_the_fastest_is_one_that_fits():
    found = made()
    assert not row(found, 0).fits
    assert found.fastest in found.fitting
    assert found.fastest.samples_per_second == max(one.samples_per_second for one in found.fitting)
    assert "Fastest that fits" in wording.headline(found)


def test_nothing_fits_and_it_says_what_is_missing():
    found = made("70B", "1 x A100-80GB")
    assert not found.fitting
    assert found.fastest is None
    assert wording.headline(found).startswith("Nothing fits")
    assert "more" in wording.headline(found)
    assert tables.time(found).rows == ()


def verdict(margin_gib, host_margin_gib=1.0, unit=GIB):
    one = Row(
        stage=1, offload="none", is_own=False, memory_bytes={}, needed_bytes=(100.0 - margin_gib) * GIB,
        capacity_bytes=100.0 * GIB, host_bytes=(10.0 - host_margin_gib) * GIB, host_capacity_bytes=10.0 * GIB,
        time_s={}, step_time_s=1.0, samples_per_second=1.0, tokens_per_second=1.0, model_tflops=1.0, utilization=0.1,
        largest_micro_batch=1,
    )  # fmt: skip
    return one.verdict(unit=unit)


@pytest.mark.parametrize(
    ("margin", "host", "words"),
    [
        (41.2, 1.0, "yes, 41 left"),
        (14.0, 1.0, "tightly, 14 left"),
        (4.9, 1.0, "barely, 4.9 left"),
        (-26.1, 1.0, "no, 26 short"),
        (-1.26, -5.0, "no, 1.3 short"),
        (41.2, -5.0, "host 5.0 short"),
    ],
)
def test_margins_in_words(margin, host, words):
    assert verdict(margin, host) == words


def test_a_file_says_the_rest_and_its_own_row_is_marked(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(
        json.dumps(
            {
                "train_batch_size": 128,
                "train_micro_batch_size_per_gpu": 4,
                "fp16": {"enabled": True},
                "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": "auto"},
                "activation_checkpointing": {"partition_activations": True},
            }
        )
    )
    found = made(config=path)
    assert found.own is row(found, 2, "optimizer")
    assert found.settings.number("accumulation") == 128 / (4 * 8)
    assert found.settings.number("precision") == 1
    assert wording.same_in_all_rows(found).startswith("fp16, micro-batch 4, accumulation 4, global batch 128")
    assert any("--checkpointing full" in note for note in wording.notes(found))
    changed = made(config=path, micro_batch=2, precision="bf16", checkpointing="full")
    assert changed.settings.number("micro_batch") == 2
    assert changed.settings.number("accumulation") == 1  # train_batch_size gives way
    assert changed.settings.number("precision") == 2
    assert changed.settings.number("checkpointing") == 1


def test_precision_without_a_file_is_the_devices():
    assert made(hardware="8 x A100-80GB").settings.number("precision") == 2
    assert wording.precision(made("1B", "16 x V100-32GB")) == "fp16"


def test_stage_3_overlaps_unless_the_file_says(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 3, "overlap_comm": False}}))
    assert row(made(), 3).time_s["communication"] < row(made(config=path, precision="bf16"), 3).time_s["communication"]


def test_a_pipeline_goes_with_stages_0_and_1():
    found = made(pipeline_parallel=2, accumulation=8)
    assert {one.stage for one in found.rows} == {0, 1}
    assert all(one.time_s["bubble"] > 0 for one in found.rows)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tensor_parallel": 3}, "doesn't divide 8 devices"),
        ({"pipeline_parallel": 64}, "doesn't divide 8 devices"),
        ({"size": "layers=2,hidden=512,heads=4", "tensor_parallel": 8}, "divide the 4 attention heads"),
        ({"size": "layers=2,hidden=512,heads=4", "pipeline_parallel": 4}, "4 stages for 2 layers"),
    ],
)
def test_degrees_that_do_not_go_together(options, words):
    with pytest.raises(ConfigError, match=words):
        made(**options)


def test_a_larger_batch_never_needs_less():
    needs = [np.array([one.needed_bytes for one in made(micro_batch=micro).rows]) for micro in (1, 2, 4)]
    assert np.all(needs[0] <= needs[1])
    assert np.all(needs[1] <= needs[2])


def test_records_have_every_row():
    found = made()
    records = tables.estimate_records(found)
    assert len(records) == len(found.rows) == 8
    assert {record["fits"] for record in records} == {True, False}
    assert records[0]["margin_bytes"] == round(found.rows[0].capacity_bytes - found.rows[0].needed_bytes)
    json.dumps(tables.estimate_document(found))
