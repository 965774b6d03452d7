"""The configuration as a script reads it: what it fills in itself stays "auto", what is searched reaches it."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from autotune import ds_config

MICRO, ACCUMULATION, RATE = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "optimizer.params.lr"
LEVELS = {
    MICRO: st.sampled_from([1, 2, 4]),
    ACCUMULATION: st.sampled_from([1, 2]),
    RATE: st.sampled_from([1e-4, 1e-3]),
    "zero_optimization.stage": st.sampled_from([0, 1, 2, 3]),
    "zero_optimization.reduce_bucket_size": st.sampled_from([10**6, 10**8]),
    "precision": st.sampled_from(["fp32", "bf16"]),
    "zero_optimization.offload": st.sampled_from(["none", "optimizer"]),
}
OWN = {
    "gradient_clipping": st.sampled_from([1.0, "auto"]),
    MICRO: st.sampled_from([4, "auto"]),
    ACCUMULATION: st.sampled_from([2, "auto"]),
    "optimizer": st.builds(
        lambda rate, decay: {"type": "AdamW", "params": {"lr": rate, "weight_decay": decay}},
        st.sampled_from([3e-3, "auto"]),
        st.sampled_from([0.1, "auto"]),
    ),
    "bf16": st.builds(lambda enabled: {"enabled": enabled}, st.sampled_from([True, False, "auto"])),
    "zero_optimization": st.builds(
        lambda stage, bucket: {"stage": stage, "reduce_bucket_size": bucket, "offload_optimizer": {"device": "cpu"}},
        st.sampled_from([0, 2]),
        st.sampled_from([5e8, "auto"]),
    ),
    "autotuning": st.sampled_from([{"enabled": True, "fast": False}, {"enabled": False}]),
    "comms_logger": st.just({"enabled": False, "prof_ops": ["a", "b"]}),
}


@st.composite
def sending(draw):
    own = {key: draw(value) for key, value in OWN.items() if key == "optimizer" or draw(st.booleans())}
    settings = {key: draw(value) for key, value in LEVELS.items() if draw(st.booleans())}
    searched = {key for name in settings for key in ds_config.keys_of(name)}
    passed = {key for key in sorted(searched) if draw(st.booleans())}
    concrete = ds_config.build(ds_config.without_auto(own)[0], settings, world_size=2)
    return own, concrete, searched, passed


@given(sending())
def test_what_is_searched_and_not_passed_reaches_the_script_by_the_file(case):
    own, concrete, searched, passed = case
    before = copy.deepcopy((own, concrete))
    sent = ds_config.leaves(ds_config.as_sent(concrete, own, searched=searched, passed=passed))
    wanted = ds_config.leaves(concrete)
    for key in searched - passed:
        assert sent.get(key) == wanted.get(key) or (key not in wanted and sent[key] == "auto")
    for key in searched & passed & sent.keys():
        assert sent[key] in (wanted[key], "auto")
    assert (own, concrete) == before


@given(sending())
def test_what_is_not_searched_comes_out_as_it_went_in(case):
    own, concrete, searched, passed = case
    sent = ds_config.as_sent(concrete, own, searched=searched, passed=passed)
    flat, mine = ds_config.leaves(sent), ds_config.leaves(own)
    for key, value in mine.items():
        if key not in searched and key != ds_config.AUTOTUNING:
            assert flat.get(key) == value, key
    assert not ds_config.get(sent, ds_config.AUTOTUNING)
    assert all(key in mine or key in searched for key in flat)
    order = [key for key in own if key in sent]
    assert list(sent)[: len(order)] == order


def test_deepspeeds_own_autotuner_is_off_only_where_it_was_on():
    on = {"train_batch_size": 8, "autotuning": {"enabled": True, "fast": True}}
    sent = ds_config.as_sent(on, on, searched=(), passed=())
    assert sent["autotuning"] == {"enabled": False, "fast": True}
    assert on["autotuning"]["enabled"] is True
    plain = {"train_batch_size": 8}
    assert ds_config.as_sent(plain, plain, searched=(), passed=()) == plain
