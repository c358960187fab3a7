"""What ranks begin with."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from labcore.config import ConfigError
from labcore.datasets import fashion_mnist
from labcore.models import LENET_NAMES, LENET_SHAPES, lenet
from labcore.vectors import lenet_gradient, rank_plus_one, standard_normal, typed


def test_rank_plus_one_is_the_notes_example():
    assert rank_plus_one(2, 2).tolist() == [[1, 1], [2, 2]]


def test_the_same_seed_gives_the_same_numbers():
    assert torch.equal(standard_normal(3, 5, 7), standard_normal(3, 5, 7))
    assert not torch.equal(standard_normal(3, 5, 7), standard_normal(3, 5, 8))


def test_decimal_commas_are_numbers():
    assert typed([["1,5", "-2"], ["1e3", "0.5"]]).tolist() == [[1.5, -2.0], [1000.0, 0.5]]


@pytest.mark.parametrize("text", ["one", "", "nan", "inf", "1e39", "None"])
def test_what_is_no_finite_number_is_refused_with_its_place(text):
    with pytest.raises(ConfigError, match=r"rank 1, element 0 must be a finite number; received"):
        typed([["1"], [text]])


@pytest.mark.parametrize("place", range(8), ids=LENET_NAMES)
def test_the_ranks_gradients_add_up_to_that_of_the_whole_minibatch(place):
    data = fashion_mnist.load(fashion_mnist.EMBEDDED)
    gradients = lenet_gradient(3, LENET_NAMES[place], 0, data)
    # The same weights and images, drawn in the same order, in torch's own words.
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for shape in LENET_SHAPES:
        tensors.append(torch.zeros(shape))
        if len(shape) > 1:
            torch.nn.init.kaiming_uniform_(tensors[-1], a=5**0.5, generator=generator)
        tensors[-1].requires_grad_()
    rows = torch.randperm(len(data.train_labels), generator=generator)[:12]
    images = data.train_images[rows].unsqueeze(1).float() / 255
    F.cross_entropy(lenet(images, *tensors), data.train_labels[rows], reduction="sum").backward()
    torch.testing.assert_close(
        gradients.sum(0), tensors[place].grad.flatten(), rtol=1e-4, atol=1e-5
    )
    assert not torch.equal(gradients[0], gradients[1])
