import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vargen.training.config import RunConfig
from vargen.training.optimizer import OptimizerGroup, learning_rate_factor, schedule_progress


def test_progress_follows_whichever_limit_is_nearer():
    assert schedule_progress(25, 100, 1e9, None) == 0.25
    assert schedule_progress(25, 100, 10.0, 100.0) == 0.25
    assert schedule_progress(25, 100, 60.0, 100.0) == 0.6
    assert schedule_progress(99, 100, 200.0, 100.0) == 1.0


@given(st.floats(0, 1), st.integers(0, 50))
def test_factor_stays_in_range_and_falls_after_the_warm_up(progress, warmup):
    factor = learning_rate_factor(10**6, warmup, progress)
    assert -1e-9 <= factor <= 1 + 1e-9
    assert factor >= learning_rate_factor(10**6, warmup, min(1.0, progress + 0.1)) - 1e-9


def test_warm_up_is_linear_and_the_end_is_reached():
    assert [learning_rate_factor(step, 4, 0.0) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert learning_rate_factor(10, 4, 1.0) == pytest.approx(0.0)
    assert learning_rate_factor(10, 4, 0.5) == pytest.approx(0.5)
    factors = [learning_rate_factor(10, 4, progress, decay_start=0.6) for progress in (0.0, 0.3, 0.6, 0.8, 1.0)]
    assert factors == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.0]), "it may stay before it falls"


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_parameter_has_one_optimizer_and_vectors_no_decay(kind):
    module = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    config = RunConfig(output="x", optimizer=kind, weight_decay=0.1, learning_rate=0.01, muon_learning_rate=0.02)
    group = OptimizerGroup(config, module.parameters(), [module[0].weight])
    groups = [group for optimizer in group.optimizers for group in optimizer.param_groups]
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(map(id, module.parameters()))
    assert all((group["weight_decay"] == 0) == all(p.ndim < 2 for p in group["params"]) for group in groups)
    assert (len(group.optimizers) == 2) == (kind == "muon")
    group.set_factor(0.5)
    assert {entry["lr"] for entry in groups} == ({0.005, 0.01} if kind == "muon" else {0.005})


def test_clipping_bounds_the_norm_and_zero_leaves_it():
    module = nn.Linear(4, 4)
    group = OptimizerGroup(RunConfig(output="x"), module.parameters(), [])
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    norm = math.sqrt(sum(parameter.numel() for parameter in module.parameters()))
    assert group.clip(0.0).item() == pytest.approx(norm)
    assert module.weight.grad is not None and module.weight.grad.max().item() == 1.0
    assert group.clip(1.0).item() == pytest.approx(norm)
    clipped = math.sqrt(sum(p.grad.square().sum().item() for p in module.parameters() if p.grad is not None))
    assert clipped == pytest.approx(1.0, abs=1e-4)
