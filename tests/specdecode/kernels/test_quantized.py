"""Layers of rounded weights: their numbers, in the kernels and without them."""

import copy

import pytest
import torch
from own_kernels import compiled_products
from torch import Tensor, nn

from specdecode.kernels import quantized as module
from specdecode.kernels.linears import serve_linears
from specdecode.kernels.quantized import Int4Linear, Int8Linear, QuantizedLinear, quantization_of, quantize_linears
from vargen.checkpoints.options import OWN_QUANTIZATION


class Adapter(nn.Linear):
    """A layer of somebody else's."""


def example() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(64, 40), nn.Sequential(nn.Tanh(), nn.Linear(40, 21, bias=False)), Adapter(21, 5)
    return nn.Sequential(*layers).eval().requires_grad_(False)


class OfRoundedRows(nn.Linear):
    """A layer that rounds what it is fed, by a loop over rows."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.clone()
        for row in rows.view(-1, x.shape[-1]):
            step = row.abs().max() / 127
            row.copy_(torch.round(row / step) * step)
        return super().forward(rows)


def quantized_weights(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model in int8 that is fed numbers as they are."""
    copied = copy.deepcopy(model).to(dtype)
    quantize_linears(copied, "int8")
    return copied


def rounded(model: nn.Module) -> nn.Module:
    """The model whose weights are those that int8 stands for, by a loop over outputs."""
    for layer in model.modules():
        if type(layer) is nn.Linear:
            for row in layer.weight:
                step = row.abs().max() / 127
                row.copy_(torch.round(row / step) * step)
    return model


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", ["auto", "plain"])
@torch.no_grad()
def test_it_is_the_rounded_model(own_kernels, monkeypatch, kernels, dtype, dynamic):
    monkeypatch.setenv("VARGEN_KERNELS", kernels)
    model = example()
    quantized, exact = copy.deepcopy(model).to(dtype), rounded(copy.deepcopy(model).to(dtype).float())
    quantize_linears(quantized, "int8-dynamic" if dynamic else "int8")
    if dynamic:
        for layer in exact.modules():
            if type(layer) is nn.Linear:
                layer.__class__ = OfRoundedRows
    assert [type(each) for each in (quantized[0], quantized[1][1], quantized[2])] == [Int8Linear, Int8Linear, Adapter]
    x = torch.randn(3, 2, 64).to(dtype)
    # A number that lies between two steps may be rounded either way: a step of some fed number, times a weight.
    tie = 0.002 if dynamic else 0.0
    close = {"rtol": 0, "atol": tie + (1e-5 if dtype == torch.float32 else 0.02)}
    torch.testing.assert_close(quantized(x).float(), exact(x.float()), **close)
    assert not torch.allclose(quantized(x).float(), model.float()(x.float()), rtol=0, atol=1e-5)
    assert not dynamic or not torch.equal(quantized(x), quantized_weights(model, dtype)(x))
    quantized[0].scale[3] *= 4  # a planted fault
    assert not torch.allclose(quantized(x).float(), exact(x.float()), **close)


@torch.no_grad()
def test_another_precision_is_that_of_what_it_is_fed(own_kernels):
    layer = Int8Linear.of(nn.Linear(64, 21))
    x, weight, scale = torch.randn(3, 64), layer.weight.clone(), layer.scale.clone()
    expected = layer(x)
    half = layer.to(torch.bfloat16)
    assert half.bias.dtype == torch.bfloat16 and half.scale.dtype == torch.float32
    assert torch.equal(half.weight, weight) and torch.equal(half.scale, scale)
    torch.testing.assert_close(half(x.bfloat16()).float(), expected, rtol=0, atol=0.02)
    assert half.to("meta").scale.device.type == "meta"


@torch.no_grad()
def test_an_output_without_weights_stays_zero(own_kernels):
    layer = nn.Linear(32, 3)
    layer.weight[1] = 0
    quantized = Int8Linear.of(layer)
    assert torch.equal(quantized(torch.randn(2, 32))[:, 1], layer.bias[1].expand(2))


@torch.no_grad()
def test_layers_that_use_the_kernels_already_are_quantized_too(own_kernels):
    model, served = example(), example()
    serve_linears(served)
    quantize_linears(model, "int8")
    quantize_linears(served, "int8")
    quantize_linears(served, "int8")  # and twice is once
    x = torch.randn(2, 64)
    assert type(served[0]) is Int8Linear and torch.equal(served(x), model(x))


@torch.no_grad()
def test_many_rows_are_torchs_and_compiled_code_holds_the_product(own_kernels, monkeypatch):
    model = example()
    quantize_linears(model, "int8")
    x = torch.randn(2, 64)
    assert compiled_products(model, x) == 2
    dynamic = example()
    quantize_linears(dynamic, "int8-dynamic")
    assert compiled_products(dynamic, x) == 2
    rows = torch.randn(257, 64)
    assert torch.equal(dynamic[:2](rows)[:1], dynamic[:2](rows[:1]))  # whose rows are never torch's
    monkeypatch.setattr(module, "linear_now", lambda *arguments: pytest.fail("too many rows for it"))
    assert model(rows).shape == (257, 5)


@torch.no_grad()
def test_a_row_of_nothing_and_one_that_holds_no_number(own_kernels):
    layer = Int8Linear.of(nn.Linear(70, 5), dynamic=True)
    rows = torch.randn(4, 70)
    rows[1], rows[2, 3], rows[3, 69] = 0, torch.nan, torch.inf
    y = layer(rows)
    assert torch.equal(y[1], layer.bias) and y[0].isfinite().all() and y[2:].isnan().all()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_it_cannot_be_saved_as_what_it_is_not(quantization):
    model = example()
    quantize_linears(model, quantization)
    with pytest.raises(
        ValueError, match=f"a model in {quantization} cannot be saved; load it without quantization and save that"
    ):
        model.state_dict()


def four_bits(weight: Tensor) -> Tensor:
    """What int4 stands for, by loops: of the scales that are tried, the one that errs least for each sixty-four."""
    result = torch.empty_like(weight)
    for row, made in zip(weight, result, strict=True):
        for start in range(0, len(row), 64):
            block = row[start : start + 64]
            furthest = max(block.tolist(), key=abs)
            tried = []
            for share in module._SCALES:
                scale = torch.tensor(furthest or 1.0) * (share / -8)
                steps = torch.tensor([max(-8, min(7, round(float(each / scale)))) for each in block])
                tried.append(steps * scale)
            made[start : start + 64] = min(tried, key=lambda each: float((each - block).square().sum()))
    return result


@pytest.mark.parametrize("columns", [64, 192, 640])
@torch.no_grad()
def test_four_bits_are_the_nearest_steps_and_never_far(columns):
    torch.manual_seed(columns)
    layer = nn.Linear(columns, 7)
    layer.weight[2, :64] = 0
    rounded = Int4Linear.of(layer)
    assert rounded.weight.shape == (7, columns // 64 * 36) and rounded.weight.dtype == torch.uint8
    found = rounded.dequantized()
    torch.testing.assert_close(found, four_bits(layer.weight), rtol=1e-6, atol=1e-9)
    assert torch.equal(found[2, :64], torch.zeros(64))
    error = (found - layer.weight).norm() / layer.weight.norm()
    assert error < 0.09


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 24, 31, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_kernels_multiply_what_four_bits_stand_for(own_kernels, dtype, rows):
    torch.manual_seed(rows)
    for columns, outputs in ((64, 1), (192, 21), (2816, 70)):
        layer = Int4Linear.of(nn.Linear(columns, outputs)).to(dtype)
        x = torch.randn(rows, columns).to(dtype)
        expected = x.double() @ layer.dequantized().double().T + layer.bias.double()
        close = {"rtol": 0, "atol": 2e-5 if dtype == torch.float32 else 0.02}
        found = layer(x)
        torch.testing.assert_close(found.double(), expected, **close)
        assert torch.equal(found[-1:], layer(x[-1:]))  # a row's numbers are its own
        torch.testing.assert_close(layer.product(x) + layer.bias, found, **close)
        layer.weight[0, 20] ^= 0x10  # a planted fault: one step of one weight
        assert not torch.equal(layer(x)[:, 0], found[:, 0])


@torch.no_grad()
def test_int4_takes_what_fits_and_says_where_nothing_does():
    model = example()
    quantize_linears(model, "int4")
    assert [type(each) for each in (model[0], model[1][1])] == [Int4Linear, nn.Linear]
    assert quantization_of(model) == "int4" and quantization_of(model[1]) is None
    with pytest.raises(ValueError, match="quantization int4 needs layers whose number of inputs is a multiple of 64"):
        quantize_linears(model[1], "int4")


def test_every_name_is_one_that_options_take():
    assert tuple(module._LAYERS) == OWN_QUANTIZATION
    for name in OWN_QUANTIZATION:
        layers = example()
        quantize_linears(layers, name)
        assert quantization_of(layers) == name and isinstance(layers[0], QuantizedLinear)
