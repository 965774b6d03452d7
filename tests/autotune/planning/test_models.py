"""Models by size, by numbers, by a file, and by a torch module that another process builds."""

import json

import pytest

from autotune.errors import WorkloadError
from autotune.planning.models import count, model
from tests.autotune.planning.test_hugging_face import GPT2, LLAMA

MODULE = """
import torch
from torch import nn

print("a user's module may print")


class Block(nn.Module):
    def __init__(self, hidden, ffn, kv):
        super().__init__()
        self.num_heads = 8
        self.num_kv_heads = 2
        self.q, self.o = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.k, self.v = nn.Linear(hidden, kv, bias=False), nn.Linear(hidden, kv, bias=False)
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)


class Model(nn.Module):
    def __init__(self, hidden=8192, layers=80):
        super().__init__()
        self.words = nn.Embedding(32000, hidden)
        self.positions = nn.Embedding(1024, hidden)
        self.blocks = nn.ModuleList(Block(hidden, 28672, 2048) for _ in range(layers))
        self.head = nn.Linear(hidden, 32000, bias=False)
        assert self.head.weight.device.type == "meta"  # 68B parameters in fp32 would be 275 GB


def tied():
    made = Model(512, 2)
    made.head.weight = made.words.weight
    made.words.weight.requires_grad_(False)
    return made


def no_module():
    return 3


def convolutions():
    return nn.Conv2d(3, 8, 3)


def broken():
    raise RuntimeError("no such weights")
"""


@pytest.mark.parametrize(
    ("text", "value"), [("7B", 7e9), ("1.3b", 1.3e9), ("350M", 350e6), ("2T", 2e12), ("7", None), ("B", None)]
)
def test_counts(text, value):
    assert count(text) == value


@pytest.mark.parametrize(
    ("size", "hidden", "layers", "heads"),
    [
        ("125M", 768, 12, 12),
        ("350M", 1024, 24, 16),
        ("760M", 1536, 24, 24),
        ("1.3B", 2048, 24, 32),
        ("2.7B", 2560, 32, 20),
        ("6.7B", 4096, 32, 32),
        ("13B", 5120, 40, 40),
        ("175B", 12288, 96, 96),
    ],
)
def test_a_size_has_the_widths_of_gpt_3(size, hidden, layers, heads):
    shape = model(size).shape
    assert (shape.hidden, shape.layers, shape.heads) == (hidden, layers, heads)
    assert shape.parameters == count(size)


def test_numbers():
    found = model("layers=24,hidden=2048,heads=16,sequence=1024,vocabulary=50257")
    assert (found.shape.layers, found.shape.hidden, found.shape.heads, found.sequence) == (24, 2048, 16, 1024)
    assert found.parameters == 12 * 24 * 2048**2 + 50257 * 2048
    assert model("layers=24,hidden=2048", sequence=512).sequence == 512


def test_a_hugging_face_file(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA | {"max_position_embeddings": 131072}))
    found = model(str(folder))
    assert (found.name, found.parameters, found.sequence) == ("my-llama", 6_738_415_616, 4096)
    assert "131,072" in found.notes[0]
    assert model(str(folder / "config.json"), sequence=8192).sequence == 8192
    (tmp_path / "gpt2.json").write_text(json.dumps(GPT2))
    assert model(str(tmp_path / "gpt2.json")).name == "gpt2"


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "their_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return "their_models"


@pytest.mark.real
def test_a_module_too_large_for_this_machine(module):
    found = model(f"{module}:Model")
    hidden, ffn, kv = 8192, 28672, 2048
    block = 2 * hidden**2 + 2 * hidden * kv + 3 * hidden * ffn
    shape = found.shape
    assert found.parameters == 80 * block + 2 * 32000 * hidden + 1024 * hidden
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads) == (80, hidden, 8, 2)
    assert (shape.ffn_hidden, shape.gated, shape.tied, shape.vocabulary) == (ffn, 1, 0, 32000)
    assert found.sequence == 1024


@pytest.mark.real
def test_tied_and_frozen_parameters(module):
    shape = model(f"{module}:tied", sequence=128).shape
    assert shape.tied == 1
    assert shape.parameters - shape.trainable == 32000 * 512


@pytest.mark.real
def test_the_built_in_workload():
    found = model("byte-gpt")
    assert found.parameters == 2 * 256 * 128 + 64 * 128 + 4 * (12 * 128**2 + 13 * 128) + 2 * 128
    assert (found.shape.layers, found.shape.heads, found.shape.ffn_hidden, found.sequence) == (4, 4, 512, 64)


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_module", "it returned int"),
        ("convolutions", "stack of equal layers"),
        ("broken", "RuntimeError: no such weights"),
        ("missing", "has no attribute 'missing'"),
    ],
)
def test_a_module_that_cannot_be_used(module, name, words):
    with pytest.raises(WorkloadError, match=words):
        model(f"{module}:{name}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gigantic", "got 'gigantic'.*give a size"),
        ("7K", "from 100K parameters on"),
        ("layers=3,hiden=4", "got 'hiden=4'"),
        ("layers=3,hidden=x", "hidden='x'; it must be a number"),
        ("layers=3,hidden=0", "above 0"),
        ("layers=3,hidden=100,heads=3", "multiple of heads"),
        ("layers=3", "give parameters, or layers and hidden"),
        ("nowhere/config.json", "can't read nowhere/config.json"),
    ],
)
def test_what_is_no_model(text, words):
    with pytest.raises(WorkloadError, match=words):
        model(text)
