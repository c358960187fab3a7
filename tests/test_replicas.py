"""Replicas: k of them take one device's step, on flat memory, wherever they are."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the name that everybody knows it by)

from labcore.collectives import ALLREDUCE
from labcore.datasets import fashion_mnist
from labcore.events import ShardDone
from labcore.models import MODELS, Model, ResNet
from labcore.replicas import PHASES, Replica, Replicas, difference, place
from labcore.splitting import PARTITIONS

CPU = torch.device("cpu")
WORLD_SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 13, 16]
WAYS = [
    *((split, "central") for split in PARTITIONS),
    *(("chunk", allreduce) for allreduce in ALLREDUCE if allreduce != "central"),
]
DTYPES = {"float32": torch.float32, "float64": torch.float64}
ALLOWED = {torch.float32: 1e-6, torch.float64: 1e-12}
"""How far k replicas may be from one device after 20 steps."""
# In float32 two ways to add can put a unit on two sides of its ReLU's kink, and the paths part. So
# small steps there, which still move the parameters thousands of times farther than is allowed.
LR = {(torch.float32, 0.0): 0.01, (torch.float32, 0.9): 0.002}

every_world_size = pytest.mark.parametrize("world_size", WORLD_SIZES)
every_way = pytest.mark.parametrize(("split", "allreduce"), WAYS)
# Each split and each allreduce once.
some_ways = pytest.mark.parametrize(
    ("split", "allreduce"), [("chunk", "ring"), ("balanced", "central")]
)
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
every_momentum = pytest.mark.parametrize("momentum", [0.0, 0.9])
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Several threads gain nothing on tensors this small, and stall on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def data():
    return fashion_mnist.load(fashion_mnist.EMBEDDED)


@cache
def minibatches(sizes):
    """Images and labels of real minibatches of these sizes."""
    generator = torch.Generator().manual_seed(1)
    chosen = [torch.randperm(6_000, generator=generator)[:size] for size in sizes]
    return [(data().train_images[rows], data().train_labels[rows]) for rows in chosen]


def replicas(world_size, model="lenet", dtype=torch.float32, initialisation="torch", device=CPU):
    generator = torch.Generator().manual_seed(0)
    return Replicas(model, [device] * world_size, initialisation, generator, dtype)


def off_the_kinks(them):
    """With biases that are not 0, where all of an image's background is on the ReLU's kink."""
    for replica in them.ranks:
        for bias in list(replica.module.parameters())[1::2]:
            bias.data.add_(torch.arange(len(bias)).cos(), alpha=0.05)
    return them


def step(them, images, labels, split="chunk", allreduce="central", lr=0.1, momentum=0.0):
    """One step to its end: the events on the way, and the report."""
    schedule = ALLREDUCE[allreduce](len(them.ranks))
    events = them.step(
        images, labels, split=PARTITIONS[split], schedule=schedule, lr=lr, momentum=momentum
    )
    seen = []
    while True:
        try:
            seen.append(next(events))
        except StopIteration as end:
            return seen, end.value


def train(them, sizes, **settings):
    """A step for every minibatch; returns the last report."""
    report = None
    for images, labels in minibatches(sizes):
        _, report = step(them, images, labels, **settings)
    return report


def logical(replica):
    """All parameters in one vector, every tensor in its logical order."""
    return torch.cat([each.detach().reshape(-1) for each in replica.module.parameters()])


# --- one device, as torch has it ------------------------------------------------------------


def torch_lenet(start):
    """LeNet of torch's modules, with the values that replicas start from."""
    # fmt: off
    net = nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
    ).to(start.ranks[0].dtype)
    # fmt: on
    copy_parameters(net, start)
    return net


def copy_parameters(net, start):
    ours = start.ranks[0].module.parameters()
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), ours, strict=True):
            parameter.copy_(value)


def mean_loss(net, images, labels, reduction="mean"):
    dtype = next(net.parameters()).dtype
    return F.cross_entropy(net(images.unsqueeze(1).to(dtype) / 255), labels, reduction=reduction)


@cache
def one_device(sizes, dtype, lr, momentum):
    """Parameters of torch's LeNet after torch's SGD steps on the mean losses."""
    net = torch_lenet(off_the_kinks(replicas(1, dtype=dtype)))
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    for images, labels in minibatches(sizes):
        optimizer.zero_grad()
        mean_loss(net, images, labels).backward()
        optimizer.step()
    return torch.cat([each.detach().reshape(-1) for each in net.parameters()])


def check_against_one_device(world_size, sizes, split, allreduce, dtype, momentum=0.0):
    lr = LR.get((dtype, momentum), 0.1)
    them = off_the_kinks(replicas(world_size, dtype=dtype))
    train(them, sizes, split=split, allreduce=allreduce, lr=lr, momentum=momentum)
    expected = one_device(sizes, dtype, lr, momentum)
    apart = float((logical(them.ranks[0]) - expected).abs().max())
    assert apart <= ALLOWED[dtype]


@every_way
@every_world_size
def test_replicas_take_20_steps_as_one_device(world_size, split, allreduce):
    check_against_one_device(world_size, (17,) * 20, split, allreduce, torch.float64)


@some_ways
@every_world_size
def test_replicas_take_20_steps_as_one_device_in_float32(world_size, split, allreduce):
    check_against_one_device(world_size, (17,) * 20, split, allreduce, torch.float32)


@every_dtype
@some_ways
@pytest.mark.parametrize("world_size", [1, 3, 4, 16])
def test_replicas_take_20_steps_with_momentum_as_one_device(world_size, split, allreduce, dtype):
    check_against_one_device(world_size, (17,) * 20, split, allreduce, dtype, momentum=0.9)


@every_dtype
@some_ways
def test_13_rows_on_2_devices_take_20_steps_as_one_device(split, allreduce, dtype):
    check_against_one_device(2, (13,) * 20, split, allreduce, dtype)


@every_dtype
@some_ways
def test_50_rows_on_8_devices_take_20_steps_as_one_device(split, allreduce, dtype):
    # In float64 with smaller minibatches in between, for time's sake.
    sizes = (50,) * 20 if dtype == torch.float32 else (50, 10) * 10
    check_against_one_device(8, sizes, split, allreduce, dtype)


@every_dtype
@pytest.mark.parametrize(("split", "allreduce"), [("chunk", "central"), ("balanced", "ring")])
def test_256_rows_on_6_devices_take_20_steps_as_one_device(split, allreduce, dtype):
    sizes = (256,) * 20 if dtype == torch.float32 else (256, 7, 7, 7, 7, 7, 7, 7, 7, 7) * 2
    check_against_one_device(6, sizes, split, allreduce, dtype)


@pytest.mark.parametrize("world_size", range(13, 22))
def test_a_last_minibatch_of_96_on_many_devices_is_one_devices(world_size):
    sizes = (24,) * 19 + (96,)
    check_against_one_device(world_size, sizes, "chunk", "central", torch.float64)


@every_dtype
@some_ways
@pytest.mark.parametrize("world_size", [13, 21])
def test_a_last_minibatch_of_96_is_one_devices_by_any_way(world_size, split, allreduce, dtype):
    check_against_one_device(world_size, (24,) * 19 + (96,), split, allreduce, dtype)


@every_dtype
@every_momentum
def test_20_steps_move_the_parameters_much_farther_than_replicas_may_differ(momentum, dtype):
    lr = LR.get((dtype, momentum), 0.1)
    start = logical(off_the_kinks(replicas(1, dtype=dtype)).ranks[0])
    moved = one_device((17,) * 20, dtype, lr, momentum) - start
    assert float(moved.abs().max()) > 1000 * ALLOWED[dtype]


@every_way
@every_world_size
def test_replicas_are_bitwise_equal_after_every_step(world_size, split, allreduce):
    them = replicas(world_size)
    for images, labels in minibatches((17, 16, 18)):
        step(them, images, labels, split, allreduce, momentum=0.9)
        first = them.ranks[0].flat
        assert all(torch.equal(other.flat, first) for other in them.ranks[1:])


@every_way
@pytest.mark.parametrize("world_size", [13, 17, 21])
def test_replicas_with_empty_shards_stay_bitwise_equal(world_size, split, allreduce):
    them = replicas(world_size)
    train(them, (96,), split=split, allreduce=allreduce)
    assert all(torch.equal(other.flat, them.ranks[0].flat) for other in them.ranks[1:])


@every_way
def test_one_step_is_torchs_sgd_step_on_the_mean_loss(split, allreduce):
    them = off_the_kinks(replicas(3, dtype=torch.float64))
    train(them, (13,), split=split, allreduce=allreduce)
    expected = one_device((13,), torch.float64, 0.1, 0.0)
    torch.testing.assert_close(logical(them.ranks[0]), expected, rtol=0, atol=1e-15)


# --- the notes' traps -----------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["flat", "gradient", "velocity"])
def test_no_two_replicas_share_memory(memory):
    them = replicas(4)
    train(them, (8,), momentum=0.9)
    starts = {getattr(each, memory).untyped_storage().data_ptr() for each in them.ranks}
    assert len(starts) == 4


def test_no_two_replicas_share_running_statistics():
    them = replicas(3, "resnet18_quarter")
    starts = {buffer.data_ptr() for each in them.ranks for buffer in each.module.buffers()}
    assert len(starts) == sum(len(list(each.module.buffers())) for each in them.ranks)


@pytest.mark.parametrize("model", ["lenet", "resnet18_quarter"])
@pytest.mark.parametrize("steps", [0, 2])
def test_parameters_and_gradients_stay_views_of_the_flat_memory(model, steps):
    them = replicas(2, model)
    train(them, (4,) * steps, momentum=0.9)
    for replica in them.ranks:
        flat, gradient = (each.untyped_storage() for each in (replica.flat, replica.gradient))
        for parameter in replica.module.parameters():
            assert parameter.untyped_storage().data_ptr() == flat.data_ptr()
            assert parameter.grad.untyped_storage().data_ptr() == gradient.data_ptr()


@pytest.mark.parametrize("model", ["lenet", "resnet18_quarter"])
def test_every_element_of_the_flat_memory_is_in_just_one_parameter(model):
    replica = Replica(model, CPU, torch.float64)
    replica.flat.copy_(torch.arange(len(replica.flat)))
    seen = logical(replica).sort().values
    assert torch.equal(seen, torch.arange(len(replica.flat), dtype=torch.float64))


@pytest.mark.parametrize("model", ["lenet", "resnet18_quarter"])
def test_gradients_lie_in_flat_memory_as_their_parameters(model):
    replica = Replica(model, CPU, torch.float32)
    for parameter in replica.module.parameters():
        assert parameter.grad.storage_offset() == parameter.storage_offset()
        assert parameter.grad.stride() == parameter.stride()


def test_kernels_have_their_channels_innermost():
    replica = Replica("resnet18_quarter", CPU, torch.float32)
    kernels = [each for each in replica.module.parameters() if each.dim() == 4]
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in kernels)


def test_b1_of_the_notes_is_twenty_zeros_that_want_a_gradient():
    for replica in replicas(2).ranks:
        b1 = list(replica.module.parameters())[1]
        assert b1.tolist() == [0.0] * 20
        assert b1.requires_grad


def test_gradient_of_b1_is_zeros_before_the_first_backward_pass():
    # The notes' is None there; ours has its place in the flat gradient from the start.
    for replica in replicas(2).ranks:
        assert list(replica.module.parameters())[1].grad.tolist() == [0.0] * 20


def test_gradient_of_a_step_does_not_add_to_that_of_the_step_before():
    them = replicas(1, dtype=torch.float64)
    first, second = minibatches((8, 8))
    step(them, *first, lr=0.0)
    _, again = step(them, *second, lr=0.0)
    _, alone = step(replicas(1, dtype=torch.float64), *second, lr=0.0)
    assert again.norm == pytest.approx(alone.norm, rel=1e-12)


def test_an_empty_shard_has_no_gradient_though_the_step_before_had_one():
    them = replicas(4)
    assert train(them, (8,)).norms[3] > 0
    report = train(them, (3,))
    assert (report.rows[3], report.losses[3], report.norms[3]) == (0, 0.0, 0.0)


def test_replicas_start_equal():
    them = replicas(3)
    assert all(torch.equal(other.flat, them.ranks[0].flat) for other in them.ranks)


def test_replicas_leave_the_global_random_generator_alone():
    before = torch.get_rng_state()
    train(replicas(2, "resnet18_quarter"), (4,))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_step_leaves_the_images_alone():
    images, labels = (each.clone() for each in minibatches((8,))[0])
    step(replicas(2), images, labels)
    expected = minibatches((8,))[0]
    assert torch.equal(images, expected[0])
    assert torch.equal(labels, expected[1])


def test_a_step_that_is_left_halfway_changes_no_parameter():
    them, (images, labels) = replicas(2), minibatches((8,))[0]
    before = [replica.flat.clone() for replica in them.ranks]
    events = them.step(
        images,
        labels,
        split=PARTITIONS["chunk"],
        schedule=ALLREDUCE["ring"](2),
        lr=0.1,
        momentum=0.0,
    )
    for _ in range(3):
        next(events)
    events.close()
    assert all(torch.equal(each.flat, old) for each, old in zip(them.ranks, before, strict=True))


def test_a_step_after_one_that_was_left_halfway_is_unharmed():
    them = off_the_kinks(replicas(2, dtype=torch.float64))
    images, labels = minibatches((13,))[0]
    events = them.step(
        images,
        labels,
        split=PARTITIONS["chunk"],
        schedule=ALLREDUCE["ring"](2),
        lr=0.1,
        momentum=0.0,
    )
    for _ in range(3):
        next(events)
    events.close()
    step(them, images, labels)
    expected = one_device((13,), torch.float64, 0.1, 0.0)
    torch.testing.assert_close(logical(them.ranks[0]), expected, rtol=0, atol=1e-15)


# --- pixels, events and reports -------------------------------------------------------------


@every_dtype
def test_pixels_become_numbers_from_0_to_1(dtype):
    images = minibatches((8,))[0][0]
    prepared = Replica("lenet", CPU, dtype).prepare(images)
    expected = images.numpy().astype(str(dtype).removeprefix("torch."))[:, None] / 255
    np.testing.assert_array_equal(prepared.numpy(), expected)


def test_a_step_can_be_left_after_every_pass_of_every_replica():
    events, _ = step(replicas(3), *minibatches((8,))[0])
    passes = [("forward", rank) for rank in range(3)] + [("backward", rank) for rank in range(3)]
    assert events == [ShardDone(phase, rank, 3) for phase, rank in passes]


@pytest.mark.parametrize(("rows", "world_size"), [(13, 2), (50, 8), (96, 13), (96, 21)])
def test_rows_of_chunk_are_those_of_torch_chunk(rows, world_size):
    _, report = step(replicas(world_size), *minibatches((rows,))[0])
    sizes = [len(each) for each in torch.arange(rows).chunk(world_size)]
    assert report.rows == sizes + [0] * (world_size - len(sizes))


@pytest.mark.parametrize(("rows", "world_size"), [(13, 2), (50, 8), (96, 13), (96, 21)])
def test_rows_of_balanced_are_those_of_numpy_array_split(rows, world_size):
    _, report = step(replicas(world_size), *minibatches((rows,))[0], split="balanced")
    assert report.rows == [len(each) for each in np.array_split(range(rows), world_size)]


def shards_of_13():
    """What three devices get of 13 rows, cut by torch."""
    images, labels = minibatches((13,))[0]
    return list(zip(images.chunk(3), labels.chunk(3), strict=True))


def torch_norm(images, labels):
    """Norm of the gradient of torch's sum of the losses."""
    net = torch_lenet(replicas(1, dtype=torch.float64))
    gradients = torch.autograd.grad(mean_loss(net, images, labels, "sum"), list(net.parameters()))
    return np.linalg.norm(np.concatenate([each.numpy().ravel() for each in gradients]))


def test_losses_are_the_sums_over_the_shards():
    report = train(replicas(3, dtype=torch.float64), (13,))
    net = torch_lenet(replicas(1, dtype=torch.float64))
    expected = [mean_loss(net, *shard, "sum").item() for shard in shards_of_13()]
    assert report.losses == pytest.approx(expected, rel=1e-12)


def test_norms_are_those_of_the_shards_gradients_over_the_minibatchs_size():
    report = train(replicas(3, dtype=torch.float64), (13,))
    expected = [torch_norm(*shard) / 13 for shard in shards_of_13()]
    assert report.norms == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("allreduce", ALLREDUCE)
def test_norm_is_that_of_the_mean_losss_gradient(allreduce):
    report = train(replicas(3, dtype=torch.float64), (13,), allreduce=allreduce)
    assert report.norm == pytest.approx(torch_norm(*minibatches((13,))[0]) / 13, rel=1e-10)


def test_seconds_name_every_phase_in_order():
    assert tuple(train(replicas(2), (8,)).seconds) == PHASES


# --- drift ----------------------------------------------------------------------------------


@every_world_size
def test_drift_is_exactly_0_after_a_step(world_size):
    them = replicas(world_size)
    train(them, (17,))
    assert them.drift() == 0.0


@pytest.mark.parametrize("rank", range(3))
def test_drift_shows_a_disturbed_parameter(rank):
    them = replicas(3, dtype=torch.float64)
    them.ranks[rank].flat[12_345] += 0.5
    assert them.drift() == 0.5


@pytest.mark.parametrize("rank", range(3))
def test_drift_shows_a_parameter_that_is_no_number(rank):
    them = replicas(3)
    them.ranks[rank].flat[12_345] = float("nan")
    assert them.drift() != 0.0


def test_difference_is_the_largest_of_any_parameter():
    one, other = replicas(2, dtype=torch.float64).ranks
    other.flat[0] += 0.25
    list(other.module.parameters())[-1].data[3] -= 0.75
    assert difference(one, other) == 0.75


# --- batch norm -----------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """Two small residual networks in the registry, with batch norm and without."""

    def without_norms():
        network = ResNet((3, 4))
        for module in [network, *network.modules()]:
            for name, child in list(module.named_children()):
                if isinstance(child, nn.BatchNorm2d):
                    setattr(module, name, nn.Identity())
        return network

    monkeypatch.setitem(MODELS, "with norms", Model("", lambda: ResNet((3, 4))))
    monkeypatch.setitem(MODELS, "without norms", Model("", without_norms))


def apart_after_a_step(model):
    """How far three replicas are from one after a step on 12 rows."""
    three, one = (replicas(k, model, torch.float64, "he") for k in (3, 1))
    for them in (three, one):
        train(them, (12,))
    return difference(three.ranks[0], one.ranks[0])


def test_replicas_with_batch_norm_differ_from_one_device(small):
    assert apart_after_a_step("with norms") > 1e-4


def test_replicas_of_the_same_network_without_batch_norm_do_not(small):
    assert apart_after_a_step("without norms") < 1e-14


def test_one_replica_of_a_residual_network_steps_as_torchs_sgd(small):
    them = replicas(1, "with norms", torch.float64, "he")
    net = ResNet((3, 4)).double()
    copy_parameters(net, them)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for images, labels in minibatches((12, 11, 13)):
        optimizer.zero_grad()
        mean_loss(net, images, labels).backward()
        optimizer.step()
    train(them, (12, 11, 13), momentum=0.9)
    expected = torch.cat([each.detach().reshape(-1) for each in net.parameters()])
    torch.testing.assert_close(logical(them.ranks[0]), expected, rtol=0, atol=1e-12)


def test_gradients_with_batch_norm_are_the_sums_of_the_shards_own(small):
    them = replicas(3, "with norms", torch.float64, "he")
    nets = []
    for images, labels in shards_of_13():
        net = ResNet((3, 4)).double()
        copy_parameters(net, them)
        mean_loss(net, images, labels, "sum").backward()
        nets.append(net)
    shared = zip(*(net.parameters() for net in nets), strict=True)
    summed = torch.cat([sum(each.grad for each in same).reshape(-1) for same in shared])
    expected = logical(them.ranks[0]) - 0.1 / 13 * summed
    train(them, (13,))
    torch.testing.assert_close(logical(them.ranks[0]), expected, rtol=0, atol=1e-13)


def test_every_replica_keeps_the_statistics_of_its_own_shard():
    them = replicas(3, "resnet18_quarter", torch.float64)
    stem = next(them.ranks[0].module.children())
    weight, bias = stem.weight.detach().clone(), stem.bias.detach().clone()
    train(them, (13,))
    for replica, (images, _) in zip(them.ranks, shards_of_13(), strict=True):
        hidden = F.conv2d(images.unsqueeze(1).double() / 255, weight, bias, padding=1).numpy()
        # Torch's momentum of 0.1, from 0 and 1, and the variance with n − 1.
        mean = 0.1 * hidden.mean(axis=(0, 2, 3))
        variance = 0.9 + 0.1 * hidden.transpose(1, 0, 2, 3).reshape(16, -1).var(axis=1, ddof=1)
        norm = replica.module.stem_norm
        np.testing.assert_allclose(norm.running_mean.numpy(), mean, rtol=1e-9)
        np.testing.assert_allclose(norm.running_var.numpy(), variance, rtol=1e-9)


def test_running_statistics_start_as_torchs_own():
    fresh = nn.BatchNorm2d(16)
    norm = Replica("resnet18_quarter", CPU, torch.float32).module.stem_norm
    ours, theirs = dict(norm.named_buffers()), dict(fresh.named_buffers())
    assert {name: each.tolist() for name, each in ours.items()} == {
        name: each.tolist() for name, each in theirs.items()
    }


def test_a_replica_with_an_empty_shard_keeps_its_statistics():
    them = replicas(4, "resnet18_quarter")
    train(them, (3,))
    assert int(them.ranks[3].module.stem_norm.num_batches_tracked) == 0


@pytest.mark.parametrize("model", ["resnet18", "resnet18_quarter"])
def test_loss_of_a_residual_network_falls_within_a_few_steps(model):
    them, (images, labels) = replicas(2, model, initialisation="he"), minibatches((8,))[0]
    losses = [sum(step(them, images, labels, lr=0.02)[1].losses) / 8 for _ in range(4)]
    assert losses[-1] < losses[0] / 2


# --- placement ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "world_size", "ranks"),
    [
        (1, 1, [0]),
        (1, 3, [0, 0, 0]),
        (1, 4, [0, 0, 0, 0]),
        (2, 1, [0]),
        (2, 3, [0, 1, 0]),
        (2, 4, [0, 1, 0, 1]),
        (4, 1, [0]),
        (4, 3, [0, 1, 2]),
        (4, 4, [0, 1, 2, 3]),
    ],
)
def test_replicas_are_placed_on_the_gpus_in_turn(gpus, world_size, ranks, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert place(world_size).devices == tuple(torch.device("cuda", rank) for rank in ranks)


@every_world_size
def test_replicas_without_gpus_are_on_the_cpu(world_size, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert place(world_size).devices == (CPU,) * world_size


@pytest.mark.parametrize(
    ("gpus", "world_size", "words"),
    [
        (0, 1, "1 replica on the CPU (logical)"),
        (0, 3, "3 replicas on the CPU (logical, which share its cores: "),
        (1, 1, "1 replica on 1 GPU, one each"),
        (1, 3, "3 replicas on 1 GPU in turn: some share one"),
        (2, 3, "3 replicas on 2 GPUs in turn: some share one"),
        (2, 4, "4 replicas on 2 GPUs in turn: some share one"),
        (4, 1, "1 replica on 1 GPU, one each"),
        (4, 3, "3 replicas on 3 GPUs, one each"),
        (4, 4, "4 replicas on 4 GPUs, one each"),
    ],
)
def test_placement_is_said_in_words(gpus, world_size, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert place(world_size).words.startswith(words)


@every_world_size
def test_replicas_on_the_cpu_are_never_called_gpus(world_size, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "GPU" not in place(world_size).words


@needs_cuda
@pytest.mark.parametrize("allreduce", ALLREDUCE)
def test_replicas_on_gpus_agree_with_the_cpu(allreduce):
    on_gpus = Replicas("lenet", place(4).devices, "torch", torch.Generator().manual_seed(0))
    on_cpu = replicas(4)
    for them in (on_gpus, on_cpu):
        train(them, (50,) * 5, allreduce=allreduce, lr=0.02)
    assert difference(on_cpu.ranks[0], on_gpus.ranks[0]) < 1e-4


@needs_cuda
def test_replicas_on_gpus_are_bitwise_equal():
    them = Replicas("lenet", place(4).devices, "torch", torch.Generator().manual_seed(0))
    train(them, (50,) * 5)
    assert them.drift() == 0.0


def test_a_restored_replica_takes_the_same_steps() -> None:
    """With the momentum's memory, and with the running statistics of batch norms."""
    settings = {"lr": 0.01, "momentum": 0.9}
    first, later = minibatches((20, 20))
    one, other = replicas(1, "resnet18_quarter"), replicas(1, "resnet18_quarter")
    step(one, *first, **settings)
    other.ranks[0].restore(one.ranks[0].state())
    for each in (one, other):
        step(each, *later, **settings)
    for name, tensors in one.ranks[0].state().items():
        assert tensors
        assert all(map(torch.equal, tensors, other.ranks[0].state()[name]))
