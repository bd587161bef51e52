"""Linear layers that take the kernels where these serve, and are torch's own everywhere else."""

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from own_kernels import compiled_products
from torch import Tensor, nn

from specdecode.kernels import linears
from specdecode.kernels.linears import FewRowLinear, serve_linears


class Doubled(nn.Linear):
    """A layer of somebody else's."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def example() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 33), nn.Tanh(), nn.Linear(33, 21, bias=False), Doubled(21, 5)).eval()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every product that the kernels computed."""
    rows: list[int] = []

    def counted(x: Tensor, *rest: Tensor | None) -> Tensor | None:
        product = kernel(x, *rest)
        rows.extend([] if product is None else [x.numel() // x.shape[-1]])
        return product

    kernel = linears.linear_now
    monkeypatch.setattr(linears, "linear_now", counted)
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_few_rows_are_multiplied_by_the_kernels(own_kernels, calls, dtype):
    model = example().to(dtype)
    x = torch.randn(2, 3, 48).to(dtype)
    expected = model.double()(x.double())
    model = model.to(dtype)
    serve_linears(model)
    torch.testing.assert_close(model(x).double(), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.05)
    assert calls == [6, 6]
    assert [type(layer) for layer in model] == [FewRowLinear, nn.Tanh, FewRowLinear, Doubled]


@torch.no_grad()
def test_many_rows_by_tiles_keep_the_bits_of_one(own_kernels, calls, monkeypatch):
    monkeypatch.setenv("VARGEN_TILES", "plain")
    model, x = example().bfloat16(), torch.randn(131, 48).bfloat16()
    serve_linears(model)
    first = model[0](x)
    assert all(torch.equal(model[0](x[row : row + 1]), first[row : row + 1]) for row in (0, 47, 48, 130))
    assert calls == [131, 1, 1, 1, 1]


@torch.no_grad()
def test_everything_else_is_torchs(own_kernels, calls, monkeypatch):
    model = example()
    served = copy.deepcopy(model)
    serve_linears(served)
    many, few = torch.randn(257, 48), torch.randn(2, 48)
    assert torch.equal(served(many), model(many))  # too many rows
    assert torch.equal(served(few[:0]), model(few[:0]))
    assert torch.equal(served.double()(few.double()), model.double()(few.double()))
    served, model = served.float(), model.float()
    with torch.enable_grad():  # something may be learned
        served(few).sum().backward()
    gradient = served[0].weight.grad
    with torch.enable_grad():
        model(few).sum().backward()
    assert gradient is not None and torch.equal(gradient, model[0].weight.grad)
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    assert torch.equal(served(few), model(few))
    assert calls == []


@torch.no_grad()
def test_a_model_stays_what_it_was(own_kernels, calls):
    model = example()
    names = list(model.state_dict())
    serve_linears(model)
    serve_linears(model)
    assert list(model.state_dict()) == names
    other = copy.deepcopy(model)
    other[0].weight.zero_()  # a copy has weights of its own
    x = torch.randn(1, 48)
    assert not torch.equal(other(x), model(x))
    model[0].register_forward_hook(lambda module, inputs, output: output * 0)  # and hooks are obeyed
    torch.testing.assert_close(model(x), model[1:](torch.zeros(1, 33)))
    assert len(calls) == 7


@torch.no_grad()
def test_compiled_code_holds_the_product(own_kernels):
    model = example()
    serve_linears(model)
    x = torch.randn(2, 48)
    assert compiled_products(model, x) == 2


CHANGES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "shorter": ("weight", lambda weight: weight[:, :-1].clone()),
    "mixed bias": ("bias", Tensor.double),
    "spread bias": ("bias", lambda bias: bias.repeat_interleave(2)[::2]),
    "short bias": ("bias", lambda bias: bias[:-1].clone()),
    "bytes": ("weight", lambda weight: weight.to(torch.int8)),
    "elsewhere": ("weight bias", lambda each: each.to("meta")),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_what_the_kernels_cannot_read_is_torchs(own_kernels, calls, change):
    """They see addresses alone, so they would read other numbers, or past the end."""
    torch.manual_seed(0)
    served, plain = nn.Linear(48, 33), nn.Linear(48, 33)
    plain.load_state_dict(served.state_dict())
    serve_linears(nn.Sequential(served))
    names, changed = CHANGES[change]
    for layer, name in itertools.product((served, plain), names.split()):
        setattr(layer, name, nn.Parameter(changed(getattr(layer, name).detach()), requires_grad=False))

    def outcome(layer: nn.Linear) -> Tensor | type[Exception]:
        try:
            return layer(torch.ones(2, 48))
        except Exception as error:
            return type(error)

    found, expected = outcome(served), outcome(plain)
    assert calls == [] and (found is expected or torch.equal(found, expected))
