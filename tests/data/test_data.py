"""Datasets against plain numpy and torchvision, and what is said when they can't be used."""

import hashlib
import io
import pickle
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from resprobe.data import NORMALISATIONS, ImageData, Normalisation, open_data, parse_normalisation
from resprobe.errors import ResprobeError

REAL_IMAGES = Path(__file__).parents[3] / "shared" / "real" / "cifar10-test-1000.npz"

X = np.arange(6 * 4 * 5 * 3, dtype=np.uint8).reshape(6, 4, 5, 3)
Y = np.array([2, 0, 1, 1, 0, 2])


@contextmanager
def refused(match: str) -> Iterator[None]:
    """Expect a ResprobeError of one line."""
    with pytest.raises(ResprobeError, match=match) as caught:
        yield
    assert "\n" not in str(caught.value)


def collect(data: ImageData) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*data, strict=True)
    return torch.cat(images), torch.cat(labels)


def save(directory: Path, **arrays: Any) -> str:
    """Write arrays and return the name of the dataset."""
    np.savez(directory / "images.npz", **arrays)
    return f"npz:{directory / 'images.npz'}"


# Normalisation


def test_apply_is_per_channel() -> None:
    pixels = torch.rand(2, 3, 4, 5)
    before = pixels.clone()
    expected = transforms.functional.normalize(pixels, [0.1, 0.2, 0.3], [0.5, 0.25, 2.0])
    assert torch.equal(Normalisation("custom", (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)).apply(pixels), expected)
    assert torch.equal(pixels, before)


def test_none_leaves_any_number_of_channels_as_it_is() -> None:
    for channels in (1, 2, 3):
        pixels = torch.rand(2, channels, 4, 4)
        assert torch.equal(NORMALISATIONS["none"].apply(pixels), pixels)


@pytest.mark.parametrize("channels", [2, 3])
def test_single_channel_is_not_broadcast(channels: int) -> None:
    with refused(f"mnist: expected {channels} channels as in the images, got constants for 1"):
        NORMALISATIONS["mnist"].apply(torch.rand(2, channels, 4, 4))


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_text_gives_the_constants_back(name: str) -> None:
    normalisation = parse_normalisation(name)
    label, constants = normalisation.as_text().removesuffix(")").split(" (")
    read = parse_normalisation(constants)
    assert (label, read.mean, read.std) == (name, normalisation.mean, normalisation.std)


def test_parse_reads_the_command_lines_form() -> None:
    read = parse_normalisation(".4914,.4822,.4465/.2470,.2435,.2616")
    assert (read.mean, read.std) == (NORMALISATIONS["cifar10"].mean, NORMALISATIONS["cifar10"].std)
    assert parse_normalisation("0.5/0.25") == Normalisation("custom", (0.5,), (0.25,))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("imagnet", "got 'imagnet'; did you mean imagenet"),
        ("qqq", "expected one of imagenet, cifar10, .*got 'qqq'; pass one of these"),
        ("", "expected one of imagenet"),
        ("0.5,x/1,1", "expected numbers as MEAN"),
        ("0.5/", "expected numbers as MEAN"),
        ("0.5/0.5/0.5", "expected numbers as MEAN"),
        ("0.5,0.5/1", "expected as many means as stds, got 2 and 1"),
        ("0.5/0", "expected finite stds above 0, got 0.0"),
        ("0.5/-1", "expected finite stds above 0, got -1.0"),
        ("0.5/inf", "expected finite stds above 0, got inf"),
        ("0.5/nan", "expected finite stds above 0, got nan"),
        ("nan/1", r"expected means in \[0, 1\], got nan"),
        (
            "125.3,123,113.9/63,62.1,66.7",
            r"expected means in \[0, 1\], got 125.3.*divide constants for 0..255 by 255",
        ),
    ],
)
def test_parse_refuses(text: str, match: str) -> None:
    with refused(match):
        parse_normalisation(text)


def test_normalisation_needs_a_channel() -> None:
    with refused("got 0 and 0"):
        Normalisation("custom", (), ())


# Batches


@pytest.mark.parametrize("name", ["digits", "npz"])
def test_batches_have_the_promised_form(name: str, tmp_path: Path) -> None:
    data = open_data(save(tmp_path, x=X, y=Y) if name == "npz" else name, normalisation="none", batch_size=4)
    images, labels = zip(*data, strict=True)
    assert len(data) == len(labels) == {"digits": 125, "npz": 2}[name]
    assert [len(batch) for batch in labels[-2:]] == {"digits": [4, 4], "npz": [4, 2]}[name]
    assert all(batch.shape[1:] == data.image_shape for batch in images)
    assert all(batch.dtype == torch.float32 and batch.is_contiguous() for batch in images)
    assert all(batch.dtype == torch.int64 for batch in labels)


def test_iterations_are_independent(tmp_path: Path) -> None:
    data = open_data(save(tmp_path, x=X, y=Y), normalisation="none", batch_size=2)
    first = iter(data)
    next(first)
    images, labels = collect(data)
    rest_images, rest_labels = zip(*first, strict=True)
    assert torch.equal(torch.cat(rest_images), images[2:])
    assert torch.equal(torch.cat(rest_labels), labels[2:])


@pytest.mark.parametrize("name", ["digits", "npz"])
def test_changing_a_batch_changes_nothing_else(name: str, tmp_path: Path) -> None:
    data = open_data(save(tmp_path, x=X, y=Y) if name == "npz" else name, normalisation="none")
    expected_images, expected_labels = collect(data)
    for images, labels in data:
        images.zero_()
        labels.zero_()
    images, labels = collect(data)
    assert torch.equal(images, expected_images)
    assert torch.equal(labels, expected_labels)


def test_pixels_are_what_batches_normalise() -> None:
    data = open_data("digits", num_images=130, batch_size=50)
    pixels, labels = data.pixels()
    images, image_labels = collect(data)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert torch.equal(data.normalisation.apply(pixels), images)
    assert torch.equal(labels, image_labels)


def test_provenance_says_what_was_used() -> None:
    data = open_data("digits", num_images=7)
    assert data.provenance == {
        "data": "digits",
        "data_sha256": data.sha256,
        "split": "test",
        "num_images": 7,
        "normalisation": "digits (0.3052/0.376)",
    }


def test_hash_is_of_images_and_labels_alone(tmp_path: Path) -> None:
    def sha256(x: np.ndarray = X, y: np.ndarray = Y, **options: Any) -> str:
        return open_data(save(tmp_path, x=x, y=y), **({"normalisation": "none"} | options)).sha256

    other_x, other_y = X.copy(), Y.copy()
    other_x[5, 3, 4, 2] ^= 1
    other_y[5] = 0
    same = [sha256(), sha256(batch_size=4), sha256(normalisation="imagenet"), sha256(y=Y.astype(">i2"))]
    different = [sha256(x=other_x), sha256(y=other_y), sha256(num_images=5), sha256(x=X.reshape(6, 5, 4, 3))]
    assert len(set(same)) == 1
    assert len(set(same + different)) == 1 + len(different)
    assert sha256(x=other_x, num_images=5) == sha256(num_images=5)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch size: expected 1 or more, got 0"),
        ({"num_images": 0}, "num images: expected 1 or more, got 0"),
        ({"num_images": 2.5}, "num images: expected 1 or more, got 2.5"),
        ({"num_images": -3}, "num images: expected 1 or more, got -3"),
        ({"num_images": 501}, "digits: expected at most the 500 images of split test, got 501"),
        ({"split": "val"}, "digits: expected split train or test, got 'val'"),
        ({"image_size": 32}, "image size: expected none for digits, got 32"),
        (
            {"normalisation": "imagenet"},
            "imagenet: expected 1 channels as in the images, got constants for 3",
        ),
        ({"normalisation": "digit"}, "did you mean digits"),
    ],
)
def test_open_data_refuses_options(options: dict[str, Any], match: str) -> None:
    with refused(match):
        open_data("digits", **options)


def test_unknown_names_are_answered_with_what_was_meant(tmp_path: Path) -> None:
    with refused("expected one of digits, cifar10, .*, folder:DIR, npz:FILE, got 'cifar-10'; did you mean cifar10"):
        open_data("cifar-10")
    with refused("got 'qqq'; pass one of these"):
        open_data("qqq")
    with refused("did you mean npz:images.npz"):
        open_data("images.npz")
    with refused(f"did you mean folder:{tmp_path}"):
        open_data(str(tmp_path))


# Named datasets


@pytest.mark.parametrize(
    ("split", "num_images", "sha256"),
    [
        ("train", 1297, "b5991cff49da803376f1fc985777652ffb4c4ef20c03002dfdcd46e1bd20094f"),
        ("test", 500, "c0f5cba09eb5784a0a3ca70986a2c93b01bc1347790684774deb4045f4f33e2c"),
    ],
)
def test_digits_stay_the_same(split: str, num_images: int, sha256: str) -> None:
    data = open_data("digits", split=split)
    assert (data.num_images, data.num_classes, data.split) == (num_images, 10, split)
    assert data.sha256 == sha256


def test_digits_are_sklearns() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    expected = set(zip(map(tuple, digits.data.tolist()), digits.target.tolist(), strict=True))
    read = []
    for split in ("train", "test"):
        pixels, labels = open_data("digits", split=split).pixels()
        values = (pixels * 16).flatten(1).tolist()
        read += list(zip(map(tuple, values), labels.tolist(), strict=True))
    assert len(read) == len(digits.data)
    assert set(read) == expected


def test_digits_constants_are_measured_on_the_training_split() -> None:
    pixels, _ = open_data("digits", split="train").pixels()
    assert NORMALISATIONS["digits"].mean == (round(pixels.double().mean().item(), 4),)
    assert NORMALISATIONS["digits"].std == (round(pixels.double().std(correction=0).item(), 4),)


def idx_bytes(array: np.ndarray) -> bytes:
    """The IDX format of MNIST: type and number of dimensions, sizes, values."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_mnist(directory: Path, images: np.ndarray, labels: np.ndarray) -> None:
    directory.mkdir(parents=True)
    for split, x, y in (("train", images[:2], labels[:2]), ("t10k", images[2:], labels[2:])):
        (directory / f"{split}-images-idx3-ubyte").write_bytes(idx_bytes(x))
        (directory / f"{split}-labels-idx1-ubyte").write_bytes(idx_bytes(y))


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_files_are_read(name: str, folder: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / folder / "raw", X[..., 0], Y)
    data = open_data(name, data_dir=tmp_path)
    images, labels = collect(data)
    mean, std = NORMALISATIONS[name].mean[0], NORMALISATIONS[name].std[0]
    expected = (torch.tensor(X[2:, None, :, :, 0]) / 255 - mean) / std
    torch.testing.assert_close(images, expected, rtol=1e-6, atol=1e-6)
    assert labels.tolist() == Y[2:].tolist()
    assert (data.num_classes, data.split) == (10, "test")
    assert collect(open_data(name, split="train", data_dir=tmp_path))[1].tolist() == Y[:2].tolist()


def test_content_hash_does_not_depend_on_storage(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw", X[..., 0], Y)
    stored = open_data(save(tmp_path, x=X[2:, ..., 0], y=Y[2:]), normalisation="mnist")
    assert open_data("mnist", data_dir=tmp_path).sha256 == stored.sha256


def test_label_beyond_the_classes_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw", X[..., 0], np.array([0, 1, 2, 9, 10, 3]))
    with refused(r"mnist test: expected labels of 0\.\.9, got 10 in row 2"):
        open_data("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_files_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}[name]
    key = {"cifar10": "labels", "cifar100": "fine_labels"}[name]
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    contents = {
        "batch": pickle.dumps({"data": images.reshape(4, -1), key: [3, 1, 4, 1]}),
        "meta": pickle.dumps({"label_names": [], "fine_label_names": []}),
    }
    (tmp_path / dataset.base_folder).mkdir()
    for file_name, content in contents.items():
        (tmp_path / dataset.base_folder / file_name).write_bytes(content)
    checksums = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(dataset, "train_list", [])
    monkeypatch.setattr(dataset, "test_list", [["batch", checksums["batch"]]])
    monkeypatch.setattr(dataset, "meta", dataset.meta | {"filename": "meta", "md5": checksums["meta"]})

    data = open_data(name, data_dir=tmp_path, normalisation="none")
    read, labels = collect(data)
    assert torch.equal(read, torch.tensor(images) / 255)
    assert labels.tolist() == [3, 1, 4, 1]
    assert data.num_classes == int(name.removeprefix("cifar"))


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion-mnist"])
def test_missing_datasets_say_where_they_belong(name: str, tmp_path: Path) -> None:
    with refused(f"{name}: expected its files in '{tmp_path}/.*no such folder; pass --download, or --data-dir DIR"):
        open_data(name, data_dir=tmp_path)


def test_damaged_datasets_say_so(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw, X[..., 0], Y)
    (raw / "t10k-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0")
    with refused(f"mnist: expected its files in '{raw}', got: .*delete that folder and pass --download"):
        open_data("mnist", data_dir=tmp_path)


def test_download_is_asked_for_and_keeps_stdout_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def download(self: torchvision.datasets.MNIST) -> None:
        print("Downloading")  # as torchvision does
        write_mnist(Path(self.raw_folder), X[..., 0], Y)

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    assert open_data("mnist", data_dir=tmp_path, download=True).num_images == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Downloading" in captured.err


def test_failed_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(self: torchvision.datasets.MNIST) -> None:
        raise RuntimeError("Error downloading train:\nTried a mirror, got:\nno route\n")

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    with refused(f"mnist: expected to download it to '{tmp_path}/MNIST/raw', got: .*no route; try again"):
        open_data("mnist", data_dir=tmp_path, download=True)


# npz files


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the examples of one property share: each overwrites the file of the last."""
    return tmp_path_factory.mktemp("scratch")


@settings(max_examples=40)
@given(drawn=st.data(), seed=st.integers(0, 2**16), compressed=st.booleans())
def test_npz_is_read_as_numpy_reads_it(drawn: st.DataObject, seed: int, compressed: bool, scratch: Path) -> None:
    shape = drawn.draw(st.tuples(*[st.integers(1, 7)] * 3) | st.tuples(*[st.integers(1, 4)] * 4))
    label_type = drawn.draw(st.sampled_from(["u1", "i2", "<i4", ">i8", "u8"]))
    num_images = drawn.draw(st.integers(1, shape[0]))
    batch_size = drawn.draw(st.integers(1, 8))
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 256, shape, dtype=np.uint8)
    y = generator.integers(0, 100, shape[0]).astype(label_type)
    (np.savez_compressed if compressed else np.savez)(scratch / "x.npz", x=x, y=y)

    name = f"npz:{scratch / 'x.npz'}"
    data = open_data(name, normalisation="none", num_images=num_images, batch_size=batch_size)
    images, labels = collect(data)
    expected = torch.tensor(x.reshape(*shape[:3], -1)[:num_images]).permute(0, 3, 1, 2) / 255
    assert torch.equal(images, expected)
    assert np.array_equal(labels, y[:num_images])
    assert data.image_shape == expected.shape[1:]
    assert (data.split, data.num_classes) == ("all", None)

    np.savez(scratch / "x.npz", x=x[:num_images], y=y[:num_images].astype(np.int64))
    assert data.sha256 == open_data(name, normalisation="none").sha256


def test_normalised_npz_is_bitwise_torchvisions(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, 9, 8, 3), dtype=np.uint8)
    images, _ = collect(open_data(save(tmp_path, x=x, y=Y), normalisation="imagenet", batch_size=4))
    assert torch.equal(images, as_torchvision(x, NORMALISATIONS["imagenet"]))


@pytest.mark.skipif(not REAL_IMAGES.is_file(), reason=f"real CIFAR-10 images are not at {REAL_IMAGES}")
def test_real_images_are_read_as_numpy_and_torchvision_read_them() -> None:
    images, labels = collect(open_data(f"npz:{REAL_IMAGES}", normalisation="cifar10", batch_size=96))
    with np.load(REAL_IMAGES) as arrays:
        assert torch.equal(images, as_torchvision(arrays["x"], NORMALISATIONS["cifar10"]))
        assert np.array_equal(labels, arrays["y"])


def as_torchvision(x: np.ndarray, normalisation: Normalisation) -> torch.Tensor:
    """Normalise (N, H, W, C) uint8 image by image, as torchvision's pipelines do."""
    normalise = transforms.Normalize(normalisation.mean, normalisation.std)
    return torch.stack([normalise(transforms.functional.to_tensor(image)) for image in x])


def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    x = np.zeros((500, 200, 200, 3), dtype=np.uint8)
    np.savez_compressed(tmp_path / "large.npz", x=x, y=np.zeros(len(x), dtype=np.int64))
    data = open_data(f"npz:{tmp_path / 'large.npz'}", normalisation="none", batch_size=5)
    tracemalloc.start()
    try:
        num_read = sum(len(labels) for _, labels in data)
        _ = data.sha256
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_read == len(x)
    assert peak < x.nbytes / 10


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"y": Y}, "no item named 'x.npy'"),
        ({"x": X}, "no item named 'y.npy'"),
        ({"x": X / 255, "y": Y}, "expected x of uint8, got float64"),
        ({"x": X.astype(np.int64), "y": Y}, "expected x of uint8, got int64"),
        ({"x": X.astype(object), "y": Y}, "expected x of uint8, got object"),
        ({"x": X.reshape(6, -1), "y": Y}, r"expected x of shape .* got \(6, 60\)"),
        ({"x": X[..., None], "y": Y}, r"expected x of shape .* got \(6, 4, 5, 3, 1\)"),
        ({"x": np.uint8(3), "y": Y}, r"expected x of shape .* got \(\)"),
        (
            {"x": np.zeros((6, 3, 8, 9), np.uint8), "y": Y},
            r"channels last, got \(6, 3, 8, 9\); store x.transpose",
        ),
        ({"x": X[:0], "y": Y[:0]}, "expected at least one image"),
        ({"x": X[:, :0], "y": Y}, "expected at least one image"),
        ({"x": np.asfortranarray(X), "y": Y}, "expected x in C order, got Fortran order"),
        ({"x": X, "y": Y.astype(float)}, "expected y of integers, got float64"),
        ({"x": X, "y": Y.astype(bool)}, "expected y of integers, got bool"),
        ({"x": X, "y": Y.astype(object)}, "expected y of integers, got object"),
        ({"x": X, "y": Y[:5]}, r"expected y of shape \(6,\), one label per image of x, got \(5,\)"),
        ({"x": X, "y": Y[:, None]}, r"expected y of shape \(6,\), one label per image of x, got \(6, 1\)"),
        ({"x": X, "y": np.where(Y == 1, -1, Y)}, "expected labels of 0 or more, got -1 in row 2"),
        (
            {"x": X, "y": Y.astype(np.uint64) + 2**63},
            "expected labels of 0 or more, got 9223372036854775810 in row 0",
        ),
    ],
)
def test_npz_arrays_are_refused(arrays: dict[str, np.ndarray], match: str, tmp_path: Path) -> None:
    name = save(tmp_path, **arrays)
    with refused(f"npz file '{tmp_path}/images.npz': .*{match}"):
        open_data(name, normalisation="none")


def test_first_bad_label_is_found_in_later_pieces(tmp_path: Path) -> None:
    y = np.zeros(70_000, dtype=np.int8)
    y[69_000] = -7
    name = save(tmp_path, x=np.zeros((len(y), 1, 1), np.uint8), y=y)
    with refused("got -7 in row 69000"):
        open_data(name, normalisation="none")


class WritesWhenUnpickled:
    """Leaves a trace if it's ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("member", ["x", "y"])
def test_objects_are_never_unpickled(member: str, tmp_path: Path) -> None:
    trace = tmp_path / "unpickled"
    objects = np.array([WritesWhenUnpickled(trace)] * 6, dtype=object)
    name = save(tmp_path, **({"x": X, "y": Y} | {member: objects}))
    with refused("got object"):
        open_data(name, normalisation="none")
    assert not trace.exists()


def replace_member(path: Path, member: str, change: Callable[[bytes], bytes]) -> None:
    """Rewrite one member of the archive, with a matching checksum."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, change(content) if name == member else content)


# numpy refuses such headers in several lines.
LONG_HEADER = b"\x93NUMPY\1\0" + struct.pack("<H", 20_000) + b" " * 20_000


def npy_bytes(array: np.ndarray, version: tuple[int, int]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda path: path.unlink(), "expected a file, got none there"),
        (lambda path: path.write_bytes(b""), "not a zip file"),
        (lambda path: path.write_text("an image"), "not a zip file"),
        (lambda path: path.write_bytes(npy_bytes(X, (1, 0))), "not a zip file"),
        (lambda path: path.write_bytes(path.read_bytes()[:300]), "not a zip file"),
        (
            lambda path: replace_member(path, "x.npy", lambda content: content[:-1]),
            "expected 360 bytes in x, got 359",
        ),
        (
            lambda path: replace_member(path, "y.npy", lambda content: content + b"0"),
            "expected 48 bytes in y, got 49",
        ),
        (
            lambda path: replace_member(path, "x.npy", lambda content: b"an image"),
            "magic string is not correct",
        ),
        (lambda path: replace_member(path, "x.npy", lambda content: LONG_HEADER), "Header info length"),
        (lambda path: replace_member(path, "x.npy", lambda content: b""), "EOF"),
        (lambda path: replace_member(path, "x.npy", lambda content: content[:40]), "EOF"),
        (
            lambda path: replace_member(path, "x.npy", lambda content: npy_bytes(X, (3, 0))),
            r"version \(3, 0\)",
        ),
    ],
)
def test_damaged_npz_is_refused_at_once(damage: Callable[[Path], object], match: str, tmp_path: Path) -> None:
    name = save(tmp_path, x=X, y=Y)
    damage(tmp_path / "images.npz")
    with refused(f"npz file '{tmp_path}/images.npz': .*{match}"):
        open_data(name, normalisation="none")


@pytest.mark.parametrize(
    ("write", "match"), [(np.savez, "Bad CRC-32"), (np.savez_compressed, "Error -3 while decompressing")]
)
def test_damaged_pixels_are_refused_when_they_are_read(write: Callable[..., None], match: str, tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    x = np.random.default_rng(0).integers(0, 256, (60, 40, 50, 3), dtype=np.uint8)
    write(path, x=x, y=np.zeros(60, dtype=np.int64))
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 200] = bytes(200)
    path.write_bytes(content)
    data = open_data(f"npz:{path}", normalisation="none")
    with refused(f"npz file '{path}': expected arrays x and y in an intact npz archive, got: {match}"):
        list(data)


def test_file_replaced_by_a_shorter_one_is_noticed(tmp_path: Path) -> None:
    data = open_data(save(tmp_path, x=X, y=Y), normalisation="none", batch_size=4)
    save(tmp_path, x=X[:5], y=Y[:5])
    with refused("got: an array that ends before its last row"):
        list(data)


def test_npz_has_one_split_and_no_normalisation_of_its_own(tmp_path: Path) -> None:
    name = save(tmp_path, x=X, y=Y)
    assert open_data(name, split="all", normalisation="none").split == "all"
    with refused("expected split all, got 'test'"):
        open_data(name, split="test", normalisation="none")
    with refused("expected a normalisation, got none; pass --normalise"):
        open_data(name)
    with refused("expected at most the 6 images of split all, got 7"):
        open_data(name, normalisation="none", num_images=7)


def test_npz_of_another_numpy_version_is_read(tmp_path: Path) -> None:
    name = save(tmp_path, x=X, y=Y)
    replace_member(tmp_path / "images.npz", "x.npy", lambda content: npy_bytes(X, (2, 0)))
    images, _ = collect(open_data(name, normalisation="none"))
    assert torch.equal(images, torch.tensor(X).permute(0, 3, 1, 2) / 255)


# Folders


def write_image(path: Path, *, width: int = 12, height: int = 10, seed: int = 0, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Class folders with five images."""
    for seed, name in enumerate(["dog/b.png", "dog/a.png", "cat/c.png", "cat/deeper/d.png", "ant/e.png"]):
        write_image(tmp_path / "animals" / name, seed=seed)
    return tmp_path / "animals"


def as_image_folder(directory: Path, *steps: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Read class folders with torchvision's pipeline."""
    dataset = torchvision.datasets.ImageFolder(directory, transforms.Compose([*steps, transforms.ToTensor()]))
    images, labels = zip(*dataset, strict=True)
    return torch.stack(images), torch.tensor(labels)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_folder_is_read_as_torchvision_reads_it(batch_size: int, animals: Path) -> None:
    write_image(animals / "ant" / "grey.png", mode="L")
    (animals / "ant" / "notes.txt").write_text("no image")
    data = open_data(f"folder:{animals}", normalisation="none", batch_size=batch_size)
    images, labels = collect(data)
    expected_images, expected_labels = as_image_folder(animals)
    assert torch.equal(images, expected_images)
    assert torch.equal(labels, expected_labels)
    assert (data.split, data.num_images, data.num_classes, data.image_shape) == ("all", 6, 3, (3, 10, 12))


def test_images_of_many_sizes_are_brought_to_one(animals: Path) -> None:
    write_image(animals / "cat" / "wide.png", width=61, height=33)
    write_image(animals / "cat" / "high.png", width=30, height=47)
    data = open_data(f"folder:{animals}", normalisation="none", image_size=21)
    images, _ = collect(data)
    expected, _ = as_image_folder(animals, transforms.Resize(24), transforms.CenterCrop(21))
    assert torch.equal(images, expected)
    assert data.image_shape == (3, 21, 21)


def test_images_of_many_sizes_need_an_image_size(animals: Path) -> None:
    write_image(animals / "dog" / "wide.png", width=61, height=33)
    data = open_data(f"folder:{animals}", normalisation="none", batch_size=2)
    with refused("wide.png': expected 12 x 10 pixels as in the first image, got 61 x 33; pass --image-size"):
        list(data)


def test_images_are_decoded_when_their_batch_is_due(animals: Path) -> None:
    (animals / "dog" / "b.png").write_bytes((animals / "dog" / "b.png").read_bytes()[:100])
    batches = iter(open_data(f"folder:{animals}", normalisation="none", batch_size=4))
    assert next(batches)[1].tolist() == [0, 1, 1, 2]
    with refused("image '.*dog/b.png': expected a readable image, got: .*; replace or remove the file"):
        next(batches)


def test_unreadable_first_image_is_named(animals: Path) -> None:
    (animals / "ant" / "e.png").write_text("no image")
    with refused("image '.*ant/e.png': expected a readable image"):
        open_data(f"folder:{animals}", normalisation="none")


def test_hidden_folders_are_no_classes(animals: Path) -> None:
    (animals / ".cache").mkdir()
    assert open_data(f"folder:{animals}", normalisation="none").num_classes == 3


def test_folder_with_splits(animals: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(animals, tmp_path / "split" / split)
    name = f"folder:{tmp_path / 'split'}"
    assert open_data(name, normalisation="none").split == "val"
    assert open_data(name, normalisation="none", split="test").split == "val"
    assert open_data(name, normalisation="none", split="train").split == "train"
    for split in ("all", "valid"):
        with refused(f"expected split train or val, got '{split}'"):
            open_data(name, normalisation="none", split=split)
    shutil.copytree(animals, tmp_path / "split" / "test")
    assert open_data(name, normalisation="none").split == "test"


def test_only_a_training_split_is_not_taken_for_a_test(animals: Path, tmp_path: Path) -> None:
    shutil.copytree(animals, tmp_path / "split" / "train")
    with refused("expected split train, got 'test'; pass --split train"):
        open_data(f"folder:{tmp_path / 'split'}", normalisation="none")


def test_class_folders_are_the_split_all(animals: Path) -> None:
    assert open_data(f"folder:{animals}", normalisation="none", split="all").split == "all"
    with refused("expected split all, got 'test'"):
        open_data(f"folder:{animals}", normalisation="none", split="test")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("car/a.png", "train/b.png"):
        write_image(tmp_path / name)
    data = open_data(f"folder:{tmp_path}", normalisation="none")
    assert (data.split, data.num_classes) == ("all", 2)


def test_splits_share_their_classes(animals: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        shutil.copytree(animals, tmp_path / "split" / split)
    shutil.rmtree(tmp_path / "split" / "test" / "cat")
    with refused("expected the same class folders in test and train, got 'cat' in only one of them"):
        open_data(f"folder:{tmp_path / 'split'}", normalisation="none")
    (tmp_path / "split" / "test" / "cat").mkdir()
    _, labels = collect(open_data(f"folder:{tmp_path / 'split'}", normalisation="none"))
    assert labels.tolist() == [0, 2, 2]


def test_folder_hash_is_of_the_files_used(animals: Path, tmp_path: Path) -> None:
    def sha256(directory: Path = animals, **options: Any) -> str:
        return open_data(f"folder:{directory}", **({"normalisation": "none"} | options)).sha256

    original, first_four = sha256(), sha256(num_images=4)
    assert sha256(batch_size=1, normalisation="imagenet") == original
    assert sha256(Path(shutil.copytree(animals, tmp_path / "elsewhere"))) == original
    assert len({original, first_four, sha256(image_size=8), sha256(image_size=9)}) == 4
    (animals / "dog" / "b.png").rename(animals / "dog" / "c.png")
    renamed = sha256()
    write_image(animals / "dog" / "c.png", seed=7)
    assert len({original, renamed, sha256()}) == 3
    assert sha256(num_images=4) == first_four


def test_empty_and_missing_folders(tmp_path: Path) -> None:
    with refused(f"folder '{tmp_path}/none': expected a folder, got none there"):
        open_data(f"folder:{tmp_path}/none")
    with refused(f"folder '{tmp_path}': expected images in class folders, got none"):
        open_data(f"folder:{tmp_path}")
    (tmp_path / "cat").mkdir()
    with refused(f"folder '{tmp_path}': expected images in class folders, got none"):
        open_data(f"folder:{tmp_path}")
    write_image(tmp_path / "cat" / "a.png")
    with refused("expected a normalisation, got none"):
        open_data(f"folder:{tmp_path}")
    with refused("image size: expected 1 or more, got 0"):
        open_data(f"folder:{tmp_path}", image_size=0)
