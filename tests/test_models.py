import torch

import recollect as rc


def test_the_mlp_is_the_papers() -> None:
    with torch.random.fork_rng():
        model = rc.models.mlp(54, 7)
    assert [tuple(p.shape) for p in model.parameters()] == [(128, 54), (128,), (128, 128), (128,), (7, 128), (7,)]


def test_the_cnn_is_the_papers() -> None:
    with torch.random.fork_rng():
        model = rc.models.cnn((1, 28, 28), 10)
    weights = [tuple(p.shape) for p in model.parameters() if p.ndim > 1]
    assert weights == [(32, 1, 5, 5), (32, 32, 5, 5), (64, 32, 5, 5), (256, 576), (10, 256)]


def test_resnet18_has_torchvisions_parameter_names_and_count() -> None:
    with torch.random.fork_rng():
        model = rc.models.resnet18(10)
    names = [name for name, _ in model.named_parameters()]
    assert sum(p.numel() for p in model.parameters()) == 11_181_642
    assert len(names) == 62
    assert names[:4] == ["conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight"]
    assert "layer2.0.downsample.0.weight" in names
    assert "layer4.1.bn2.bias" in names
    assert names[-2:] == ["fc.weight", "fc.bias"]
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
