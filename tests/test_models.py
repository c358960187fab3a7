"""The image classifiers: sizes, formulas, initial values and gradients, against torch's own."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)
from torch.utils.flop_counter import FlopCounterMode

from labcore.models import (
    INITIALISATIONS,
    LENET_SHAPES,
    MODELS,
    LeNet,
    Residual,
    ResNet,
    initialise,
)
from labcore.models import lenet as plain_lenet
from labcore.replicas import Replica

CPU = torch.device("cpu")
# Parameters, tensors and millions of multiply-adds per image, from EXPERIMENTS, section 3.
SIZES = {
    "lenet": (129_068, 8, 2.25),
    "resnet18": (11_175_818, 76, 456),
    "resnet18_deeper": (83_559_306, 112, 629),
}
# Channels and pixels after the stem and after every block.
STAGES = {
    "resnet18_quarter": [(16, 28), (16, 28), (16, 28), (32, 14), (32, 14), (64, 7), (64, 7),
                         (128, 4), (128, 4)],
    "resnet18": [(64, 28), (64, 28), (64, 28), (128, 14), (128, 14), (256, 7), (256, 7),
                 (512, 4), (512, 4)],
    "resnet18_deeper": [(64, 28), (64, 28), (64, 28), (128, 14), (128, 14), (256, 7), (256, 7),
                        (512, 4), (512, 4), (1024, 2), (1024, 2), (1024, 1), (1024, 1)],
}  # fmt: skip
BLOCKS = {"plain": (4, 4, 1), "halving": (4, 4, 2), "widening": (4, 6, 1), "both": (4, 6, 2)}
# The deviation that each scheme gives a weight with so many inputs and outputs.
DEVIATIONS = {
    "normal": lambda inputs, outputs: 0.01,
    "xavier": lambda inputs, outputs: math.sqrt(2 / (inputs + outputs)),
    "he": lambda inputs, outputs: math.sqrt(2 / inputs),
    "torch": lambda inputs, outputs: math.sqrt(1 / (3 * inputs)),
}
BOUNDS = {
    "xavier": lambda inputs, outputs: math.sqrt(6 / (inputs + outputs)),
    "torch": lambda inputs, outputs: math.sqrt(1 / inputs),
}
# Inputs and outputs of one value, where the kernel's pixels count.
FANS = {2: (20 * 25, 50 * 25), 4: (800, 128)}

every_model = pytest.mark.parametrize("model", MODELS)
every_resnet = pytest.mark.parametrize("model", STAGES)
every_scheme = pytest.mark.parametrize("scheme", INITIALISATIONS)
every_block = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Several threads gain nothing on tensors this small, and stall on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def nowhere(model):
    """A model without memory: enough for shapes, and for what batch norm refuses."""
    with torch.device("meta"):
        return MODELS[model].build()


def images(number, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(number, 1, 28, 28, generator=generator, dtype=dtype)


def randomise(module, seed=0):
    """Values that hide no term of a formula: no scale is 1, no shift and no bias 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.4 + 0.1)
    return module


def filled(module, scheme, seed=0):
    initialise(module, scheme, torch.Generator().manual_seed(seed))
    return module


def values(module):
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


# --- sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", SIZES)
def test_number_of_parameters_is_that_of_the_notes(model):
    assert sum(each.numel() for each in nowhere(model).parameters()) == SIZES[model][0]


@pytest.mark.parametrize("model", SIZES)
def test_number_of_tensors_is_that_of_the_notes(model):
    assert len(list(nowhere(model).parameters())) == SIZES[model][1]


@pytest.mark.parametrize("model", SIZES)
def test_multiply_adds_per_image_are_those_of_the_notes(model):
    with FlopCounterMode(display=False) as counter:
        nowhere(model).eval()(torch.empty(1, 1, 28, 28, device="meta"))
    # The notes' page rounds to three digits.
    assert counter.get_total_flops() / 2e6 == pytest.approx(SIZES[model][2], rel=3e-3)


def test_quarter_width_has_a_quarter_of_the_channels_everywhere():
    quarter, whole = (
        [*map(type, m.modules())] for m in map(nowhere, ["resnet18_quarter", "resnet18"])
    )
    assert quarter == whole
    narrow, wide = nowhere("resnet18_quarter"), nowhere("resnet18")
    for ours, theirs in zip(narrow.parameters(), wide.parameters(), strict=True):
        assert ours.shape[0] in (theirs.shape[0] / 4, 10)


@every_model
def test_model_gives_ten_logits_per_image(model):
    assert nowhere(model)(torch.empty(5, 1, 28, 28, device="meta")).shape == (5, 10)


@every_resnet
def test_stages_have_the_channels_and_pixels_of_the_notes(model):
    module, seen = nowhere(model), []
    for part in [module.stem, *module.blocks]:
        part.register_forward_hook(lambda _part, _inputs, output: seen.append(output.shape))
    module(torch.empty(3, 1, 28, 28, device="meta"))
    assert seen == [(3, channels, pixels, pixels) for channels, pixels in STAGES[model]]


@every_model
def test_smallest_shard_is_taken(model):
    smallest = MODELS[model].smallest_shard
    nowhere(model).train()(torch.empty(smallest, 1, 28, 28, device="meta"))


@pytest.mark.parametrize(
    "model", [name for name, each in MODELS.items() if each.smallest_shard > 1]
)
def test_batch_norm_refuses_one_image_less_than_the_smallest_shard(model):
    module = nowhere(model).train()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        module(torch.empty(MODELS[model].smallest_shard - 1, 1, 28, 28, device="meta"))


def test_only_the_deeper_model_needs_more_than_one_image():
    assert [name for name, each in MODELS.items() if each.smallest_shard > 1] == ["resnet18_deeper"]


# --- formulas -------------------------------------------------------------------------------


def modules_of_lenet():
    """The same network once more, of torch's modules, as EXPERIMENTS describes it."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
    ).double()  # fmt: skip


def lenet_tensors():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64) / 10 for shape in LENET_SHAPES
    ]


def test_lenet_agrees_with_torchs_modules():
    theirs, tensors = modules_of_lenet(), lenet_tensors()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), tensors, strict=True)))
    torch.testing.assert_close(
        plain_lenet(images(7), *tensors), theirs(images(7)).detach(), rtol=1e-12, atol=1e-12
    )


def test_lenet_as_a_module_is_the_function_of_its_tensors_in_order():
    module, tensors = LeNet().double(), lenet_tensors()
    with torch.no_grad():
        for parameter, tensor in zip(module.parameters(), tensors, strict=True):
            parameter.copy_(tensor)
    assert torch.equal(module(images(7)).detach(), plain_lenet(images(7), *tensors))


def block_formula(block, x, training):
    """The block's output, with torch.nn.functional alone."""

    def norm(hidden, each):
        statistics = each.running_mean.clone(), each.running_var.clone()
        return F.batch_norm(hidden, *statistics, each.weight, each.bias, training)

    stride = block.conv1.stride
    hidden = F.relu(
        norm(F.conv2d(x, block.conv1.weight, block.conv1.bias, stride, padding=1), block.norm1)
    )
    hidden = norm(F.conv2d(hidden, block.conv2.weight, block.conv2.bias, padding=1), block.norm2)
    if isinstance(block.shortcut, nn.Conv2d):
        x = F.conv2d(x, block.shortcut.weight, block.shortcut.bias, stride)
    return F.relu(hidden + x)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@every_block
def test_residual_block_follows_its_formula(block, training):
    module = randomise(Residual(*block).double()).train(training)
    x = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = block_formula(module, x, training)
    torch.testing.assert_close(module(x), expected, rtol=1e-12, atol=1e-12)


@every_block
def test_shortcut_has_a_convolution_just_where_shapes_change(block):
    inputs, outputs, stride = block
    changes = inputs != outputs or stride > 1
    assert isinstance(Residual(*block).shortcut, nn.Conv2d) == changes


def test_residual_network_is_stem_blocks_pooling_and_classifier():
    ours = randomise(ResNet((4, 6)).double()).eval()
    theirs = nn.Sequential(
        ours.stem, ours.stem_norm, nn.ReLU(), *ours.blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), ours.classifier,
    )  # fmt: skip
    torch.testing.assert_close(ours(images(3)), theirs(images(3)), rtol=1e-12, atol=1e-12)


@every_resnet
def test_every_convolution_but_the_last_shortcuts_feeds_a_batch_norm(model):
    kinds = [type(each) for each in nowhere(model).modules()]
    shortcuts = sum(
        isinstance(each, nn.Conv2d) and each.kernel_size == (1, 1)
        for each in nowhere(model).modules()
    )
    assert kinds.count(nn.BatchNorm2d) == kinds.count(nn.Conv2d) - shortcuts


# --- gradients ------------------------------------------------------------------------------


def check_gradient(replica, coordinates):
    """Compare a replica's gradient with finite differences of its loss."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (4, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.tensor([1, 0, 9, 4])
    replica.backward(replica.forward(pixels, labels))
    computed = replica.gradient.clone()
    for each in coordinates:
        small, kept = 1e-6, float(replica.flat[each])
        losses = []
        for moved in (kept + small, kept - small):
            replica.flat[each] = moved
            losses.append(float(replica.forward(pixels, labels).detach()))
        replica.flat[each] = kept
        slope = (losses[0] - losses[1]) / (2 * small)
        assert float(computed[each]) == pytest.approx(slope, rel=1e-4, abs=1e-7), each


def some_of_each_tensor(module, number):
    """Random coordinates of the flat memory, so many within every parameter."""
    generator, start = torch.Generator().manual_seed(0), 0
    for parameter in module.parameters():
        size = parameter.numel()
        yield from (start + torch.randint(size, (number,), generator=generator)).tolist()
        start += size


def test_gradient_of_lenet_agrees_with_finite_differences():
    replica = Replica("lenet", CPU, torch.float64)
    filled(replica.module, "torch")
    check_gradient(replica, some_of_each_tensor(replica.module, 4))


def test_gradient_of_a_residual_network_agrees_with_finite_differences(monkeypatch):
    small = MODELS["resnet18"].__class__("small", lambda: ResNet((3, 4)))
    monkeypatch.setitem(MODELS, "small", small)
    replica = Replica("small", CPU, torch.float64)
    randomise(replica.module)
    check_gradient(replica, some_of_each_tensor(replica.module, 1))


# --- initialisation -------------------------------------------------------------------------


@pytest.mark.parametrize("tensor", FANS)
@every_scheme
def test_weights_have_the_deviation_of_their_scheme(scheme, tensor):
    weight = list(filled(LeNet(), scheme).parameters())[tensor].detach().numpy()
    assert weight.std() == pytest.approx(DEVIATIONS[scheme](*FANS[tensor]), rel=0.02)


@pytest.mark.parametrize("tensor", FANS)
@every_scheme
def test_weights_have_the_mean_zero(scheme, tensor):
    weight = list(filled(LeNet(), scheme).parameters())[tensor].detach().numpy()
    deviation = DEVIATIONS[scheme](*FANS[tensor])
    assert abs(weight.mean()) < 4 * deviation / math.sqrt(weight.size)


@pytest.mark.parametrize("tensor", FANS)
@pytest.mark.parametrize("scheme", BOUNDS)
def test_uniform_weights_fill_their_interval(scheme, tensor):
    weight = list(filled(LeNet(), scheme).parameters())[tensor].detach().numpy()
    bound = BOUNDS[scheme](*FANS[tensor])
    assert np.abs(weight).max() == pytest.approx(bound, rel=0.001)


@pytest.mark.parametrize("scheme", sorted(INITIALISATIONS.keys() - BOUNDS))
def test_normal_weights_have_a_normal_distributions_kurtosis(scheme):
    weight = list(filled(LeNet(), scheme).parameters())[4].detach().numpy()
    # 3 for a normal distribution, 1.8 for a uniform one.
    assert np.mean(weight**4) / np.mean(weight**2) ** 2 == pytest.approx(3, abs=0.1)


def test_torchs_default_is_what_a_new_layer_of_torch_has():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        theirs = nn.Conv2d(1, 20, 3).weight
    assert torch.equal(next(filled(LeNet(), "torch", seed=7).parameters()), theirs)


@every_scheme
def test_biases_start_at_zero(scheme):
    module = filled(randomise(ResNet((4, 6))), scheme)
    biases = [each.bias for each in module.modules() if isinstance(each, nn.Conv2d | nn.Linear)]
    assert biases
    assert all(torch.equal(bias, torch.zeros_like(bias)) for bias in biases)


@every_scheme
def test_biases_of_lenet_start_at_zero(scheme):
    biases = list(filled(randomise(LeNet()), scheme).parameters())[1::2]
    assert all(torch.equal(bias, torch.zeros_like(bias)) for bias in biases)


@every_scheme
def test_batch_norms_start_as_torchs_own(scheme):
    module = filled(randomise(ResNet((4, 6))), scheme)
    norms = [each for each in module.modules() if isinstance(each, nn.BatchNorm2d)]
    assert norms
    for norm in norms:
        fresh = nn.BatchNorm2d(norm.num_features)
        assert torch.equal(norm.weight, fresh.weight)
        assert torch.equal(norm.bias, fresh.bias)


@every_scheme
@pytest.mark.parametrize("build", [LeNet, lambda: ResNet((4, 6))], ids=["lenet", "residual"])
def test_initialisation_leaves_the_global_random_generator_alone(build, scheme):
    module = build()
    before = torch.get_rng_state()
    filled(module, scheme)
    assert torch.equal(torch.get_rng_state(), before)


@every_scheme
def test_initialisation_does_not_depend_on_the_global_seed(scheme):
    drawn = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            drawn.append(values(filled(LeNet(), scheme)))
    assert torch.equal(*drawn)


@every_scheme
def test_other_generators_draw_other_weights(scheme):
    one, other = (values(filled(LeNet(), scheme, seed)) for seed in (0, 1))
    assert not torch.equal(one, other)


@every_scheme
def test_the_same_weights_are_drawn_in_any_memory_layout(scheme):
    contiguous = filled(ResNet((4, 6)), scheme)
    innermost = filled(ResNet((4, 6)).to(memory_format=torch.channels_last), scheme)
    assert torch.equal(values(contiguous), values(innermost))


@every_scheme
def test_the_same_weights_are_drawn_in_any_dtype(scheme):
    single, double = filled(LeNet(), scheme), filled(LeNet().double(), scheme)
    assert torch.equal(values(single).double(), values(double))


@every_scheme
def test_the_same_weights_are_drawn_under_another_default_dtype(scheme):
    expected = values(filled(LeNet(), scheme))
    torch.set_default_dtype(torch.float64)
    try:
        drawn = values(filled(LeNet(), scheme))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(drawn.float(), expected)


@every_scheme
def test_the_same_weights_are_drawn_in_flat_memory(scheme):
    replica = Replica("resnet18_quarter", CPU, torch.float32)
    expected = values(filled(MODELS["resnet18_quarter"].build(), scheme))
    assert torch.equal(values(filled(replica.module, scheme)), expected)
