import importlib.metadata
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resprobe import results
from resprobe.errors import ResprobeError

ANALYSES = sorted(results.SCHEMA)
MODEL = {
    "checkpoint": "net.pt",
    "checkpoint_sha256": "abc",
    "architecture": "resnet20",
    "facts": {"depth": {"value": 20}},
}
DATA = {
    "data": "digits",
    "data_sha256": "def",
    "split": "test",
    "num_images": 500,
    "normalisation": "digits (0.3/0.4)",
}


def make_attrs(**changes):
    given = {
        "title": "t",
        "references": "r",
        "options": {"seed": 3, "batch_size": 100},
        "model": MODEL,
        "data": DATA,
        "device": "cpu",
    }
    return results.make_attrs("lesion", **given | changes)


def one_line(error: pytest.ExceptionInfo[ResprobeError]) -> bool:
    return "\n" not in str(error.value)


def dtypes(dataset: xr.Dataset) -> dict[str, str]:
    """Dtypes by name; the width of a text array is that of its longest entry, so only its kind counts."""
    return {
        str(name): "text" if variable.dtype.kind == "U" else str(variable.dtype)
        for name, variable in dataset.variables.items()
    }


class TestSchema:
    @pytest.mark.parametrize("analysis", ANALYSES)
    def test_valid_results_pass(self, make_result, analysis):
        assert results.check(make_result(analysis)) is None

    @pytest.mark.parametrize("analysis", ANALYSES)
    def test_table_is_complete(self, analysis):
        fields = results.SCHEMA[analysis]
        for name, field in (fields.variables | fields.coords).items():
            assert field.long_name, name
            assert bool(field.units) == (field.kind == "float"), name
            assert set(field.dims) <= set(fields.coords), name

    def test_label_replaces_stale_attributes_and_leaves_the_input_alone(self, make_result):
        dataset = make_result("training")
        dataset["train_loss"].attrs = {"units": "ms", "note": "stale"}
        labelled = results.label(dataset, "training")
        assert labelled["train_loss"].attrs == {
            "long_name": "mean loss on the training images",
            "units": "nat",
        }
        assert labelled["epoch"].attrs == {"long_name": "epoch of training"}
        assert dataset["train_loss"].attrs == {"units": "ms", "note": "stale"}

    def test_label_keeps_data_and_attributes(self, make_result):
        dataset = make_result("lesion")
        xr.testing.assert_identical(results.label(dataset, "lesion"), dataset)

    def test_label_refuses_what_the_table_lacks(self, make_result):
        dataset = make_result("lesion").assign(surprise=1)
        with pytest.raises(LookupError, match="lesion: surprise not in"):
            results.label(dataset, "lesion")

    def test_per_image_results_are_optional_and_checked(self, make_result):
        dataset = make_result("lesion")
        correct = xr.DataArray(np.zeros((9, 500), dtype=bool), dims=("unit", "image"))
        dataset = results.label(dataset.assign(correct=correct, image=np.arange(500)), "lesion")
        results.check(dataset)
        with pytest.raises(ResprobeError, match=r"correct with dims \(image, unit\) not \(unit, image\)"):
            results.check(dataset.assign(correct=dataset["correct"].transpose()))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda d: d.drop_vars("loss"), "no variable loss"),
            (lambda d: d.drop_vars("stage"), "no coord stage"),
            (lambda d: d.reset_coords("stage"), "no coord stage"),
            (lambda d: d.isel(unit=0), r"variable error with dims \(\) not \(unit\)"),
            (
                lambda d: d.assign(num_correct=d["num_correct"].astype(float)),
                "num_correct of dtype float64 not int",
            ),
            (lambda d: d.assign(error=d["error"].astype(int)), "error of dtype int64 not float"),
            (lambda d: d.assign_coords(kind=("unit", np.zeros(9))), "coord kind of dtype float64 not text"),
            (lambda d: d.assign(extra=("unit", np.zeros(9))), "extra without long_name; extra without units"),
            (lambda d: d.assign_attrs(schema="0"), "schema version 0"),
            (
                lambda d: d.assign_attrs(analysis="lesions"),
                r"unknown analysis 'lesions' \(known: lesion, lesion-curve",
            ),
            (lambda d: d.assign_attrs(analysis=["lesion", "reorder"]), "unknown analysis"),
            (lambda d: d.assign_attrs(settings="{"), "attribute settings is not a JSON object"),
            (lambda d: d.assign_attrs(settings="[1]"), "attribute settings is not a JSON object"),
            (lambda d: d.assign_attrs(facts=3), "attribute facts is not a JSON object"),
        ],
    )
    def test_each_defect_is_named(self, make_result, change, message):
        with pytest.raises(ResprobeError, match=message) as error:
            results.check(change(make_result("lesion")))
        assert one_line(error)

    @pytest.mark.parametrize("attribute", results.ATTRIBUTES)
    def test_each_attribute_is_required(self, make_result, attribute):
        dataset = make_result("reorder")
        del dataset.attrs[attribute]
        with pytest.raises(ResprobeError, match=attribute):
            results.check(dataset)

    def test_all_defects_are_listed_at_once(self, make_result):
        dataset = make_result("training").drop_vars(["train_loss", "test_error"])
        del dataset.attrs["device"]
        with pytest.raises(ResprobeError, match="no attribute device; no variable train_loss; no variable test_error;"):
            results.check(dataset)

    def test_other_datasets_are_told_from_results(self):
        with pytest.raises(ResprobeError, match="no result of resprobe"):
            results.check(xr.Dataset({"x": 1}))


class TestProvenance:
    def test_attributes_are_complete_and_plain(self):
        attrs = make_attrs()
        assert set(attrs) == set(results.ATTRIBUTES)
        assert {type(value) for value in attrs.values()} <= {str, int, float}

    def test_values(self):
        attrs = make_attrs()
        assert attrs["schema"] == results.SCHEMA_VERSION
        assert attrs["seed"] == 3
        assert attrs["num_images"] == 500
        assert attrs["facts"] == '{"depth": {"value": 20}}'
        assert attrs["torch_version"] == importlib.metadata.version("torch")
        assert json.loads(attrs["settings"]) == {
            "seed": 3,
            "batch_size": 100,
            "split": "test",
            "num_images": 500,
            "normalisation": "digits (0.3/0.4)",
            "architecture": "resnet20",
        }

    def test_created_at_is_utc_to_the_second(self):
        created_at = datetime.fromisoformat(make_attrs()["created_at"])
        assert created_at.utcoffset().total_seconds() == 0
        assert created_at.microsecond == 0
        assert abs((datetime.now(UTC) - created_at).total_seconds()) < 60

    def test_a_bare_model_and_bare_batches(self):
        attrs = make_attrs(model=None, data=None, options={})
        assert set(attrs) == set(results.ATTRIBUTES)
        assert attrs["facts"] == "{}"
        for name in (
            "checkpoint",
            "checkpoint_sha256",
            "architecture",
            "data",
            "data_sha256",
            "num_images",
            "seed",
        ):
            assert attrs[name] == "", name

    def test_no_seed_is_the_empty_string_and_seed_zero_is_kept(self):
        assert make_attrs(options={"seed": None})["seed"] == ""
        assert make_attrs(options={"seed": 0})["seed"] == 0

    def test_the_order_of_options_is_irrelevant(self):
        there, back = {"a": 1, "b": [1, 2]}, {"b": (1, 2), "a": 1}
        assert make_attrs(options=there)["settings"] == make_attrs(options=back)["settings"]

    @pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), float("inf"), np.int64(3)])
    def test_options_that_json_lacks_are_refused(self, value):
        with pytest.raises(ResprobeError, match="options|settings: expected values that JSON can hold") as error:
            make_attrs(options={"step": value})
        assert one_line(error)

    def test_unknown_and_colliding_keys_are_refused(self):
        with pytest.raises(ResprobeError, match="model: expected the keys checkpoint, .* got sha; leave"):
            make_attrs(model={"sha": "abc"})
        with pytest.raises(ResprobeError, match="got num_images; pass these in model or data"):
            make_attrs(options={"num_images": 3})

    def test_versions_without_metadata(self, monkeypatch):
        def missing(name):
            raise importlib.metadata.PackageNotFoundError(name)

        torch = pytest.importorskip("torch")
        monkeypatch.setattr(importlib.metadata, "version", missing)
        attrs = make_attrs()
        assert attrs["resprobe_version"] == "not installed"
        assert attrs["torch_version"] == torch.__version__

    def test_torch_is_not_imported(self):
        code = (
            "import sys, resprobe.results as r; "
            "r.make_attrs('lesion', title='', references='', options={}, model={}, data={}, device='cpu'); "
            "sys.exit('torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    @pytest.mark.parametrize(
        "change",
        [
            {"model": MODEL | {"checkpoint_sha256": "other"}},
            {"model": MODEL | {"architecture": "plain20"}},
            {"data": DATA | {"data_sha256": "other"}},
            {"data": DATA | {"normalisation": "none"}},
            {"data": DATA | {"num_images": 100}},
            {"options": {"seed": 4, "batch_size": 100}},
        ],
    )
    def test_the_fingerprint_sees_what_decides_the_numbers(self, change):
        assert results.fingerprint(make_attrs(**change)) != results.fingerprint(make_attrs())

    def test_the_fingerprint_sees_nothing_else(self):
        expected = results.fingerprint(make_attrs())
        same = make_attrs(
            title="other", references="other", device="cuda:0", model=MODEL | {"checkpoint": "renamed.pt"}
        )
        assert results.fingerprint(same) == expected
        assert results.fingerprint(make_attrs() | {"created_at": "", "torch_version": "0"}) == expected
        assert re.fullmatch("[0-9a-f]{64}", expected)
        assert results.fingerprint(make_attrs() | {"analysis": "reorder"}) != expected

    def test_neighbouring_fields_do_not_run_together(self):
        attrs = make_attrs()
        one = attrs | {"checkpoint_sha256": "ab", "data_sha256": "c"}
        other = attrs | {"checkpoint_sha256": "a", "data_sha256": "bc"}
        assert results.fingerprint(one) != results.fingerprint(other)


class TestFiles:
    @pytest.mark.parametrize("analysis", ANALYSES)
    def test_round_trip_is_identical(self, make_result, tmp_path, analysis):
        dataset = make_result(analysis)
        path = results.save(dataset, tmp_path / "result.nc")
        opened = results.open(path)
        xr.testing.assert_identical(opened, dataset)
        assert dtypes(opened) == dtypes(dataset)
        assert {name: type(value) for name, value in opened.attrs.items()} == {
            name: type(value) for name, value in dataset.attrs.items()
        }

    @settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_round_trip_of_any_values(self, make_result, tmp_path, data):
        dataset = make_result("lesion", num_units=3)
        names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
        error = data.draw(hnp.arrays(np.float64, 3, elements=st.floats(allow_infinity=True)))
        counts = data.draw(hnp.arrays(np.int64, 3))
        flags = data.draw(hnp.arrays(bool, (3, 2)))
        units = data.draw(st.lists(names, min_size=3, max_size=3))
        dataset = dataset.assign_coords(unit=np.array(units)).assign(
            error=("unit", error), num_correct=("unit", counts), correct=(("unit", "image"), flags)
        )
        dataset = results.label(dataset, "lesion")
        opened = results.open(results.save(dataset, tmp_path / "result.nc", overwrite=True))
        xr.testing.assert_identical(opened, dataset)
        assert dtypes(opened) == dtypes(dataset)

    def test_a_reopened_result_can_be_saved_again(self, make_result, tmp_path):
        dataset = make_result("lesion-curve")
        opened = results.open(results.save(dataset, tmp_path / "one.nc"))
        xr.testing.assert_identical(results.open(results.save(opened, tmp_path / "two.nc")), dataset)

    def test_no_fill_values_and_netcdf4(self, make_result, tmp_path):
        path = results.save(make_result("lesion"), tmp_path / "result.nc")
        with xr.open_dataset(path, engine="netcdf4", mask_and_scale=False) as stored:
            assert not [name for name, variable in stored.variables.items() if "_FillValue" in variable.attrs]
        assert path.read_bytes()[1:4] == b"HDF"

    def test_the_file_is_closed_and_may_go(self, make_result, tmp_path):
        path = results.save(make_result("lesion"), tmp_path / "result.nc")
        opened = results.open(path)
        path.unlink()
        assert opened["error"].sum() > 0
        if os.path.isdir("/proc/self/fd"):
            targets = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
            assert not [target for target in targets if str(path) in target]

    def test_an_invalid_result_is_not_written(self, make_result, tmp_path):
        with pytest.raises(ResprobeError, match="no variable error"):
            results.save(make_result("lesion").drop_vars("error"), tmp_path / "result.nc")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
    def test_an_interrupted_write_leaves_what_was_there(self, make_result, tmp_path, monkeypatch, interruption):
        dataset = make_result("lesion")
        path = results.save(dataset, tmp_path / "result.nc")
        before = path.read_bytes()

        def half_written(self, target, **options):
            target.write_bytes(b"half")
            raise interruption("stopped")

        monkeypatch.setattr(xr.Dataset, "to_netcdf", half_written)
        with pytest.raises(interruption, match="stopped"):
            results.save(dataset, path)
        with pytest.raises(interruption, match="stopped"):
            results.save(dataset, tmp_path / "new.nc")
        assert [entry.name for entry in tmp_path.iterdir()] == ["result.nc"]
        assert path.read_bytes() == before

    @pytest.mark.parametrize(
        "failure",
        [OSError(28, "No space left on device"), RuntimeError("NetCDF: HDF error")],
        ids=["system", "netcdf"],
    )
    def test_a_full_disk_is_one_line(self, make_result, tmp_path, monkeypatch, failure):
        def no_space(self, target, **options):
            raise failure

        monkeypatch.setattr(xr.Dataset, "to_netcdf", no_space)
        with pytest.raises(ResprobeError, match="result.nc: expected to write a .*got (No space left|NetCDF)") as error:
            results.save(make_result("lesion"), tmp_path / "result.nc")
        assert one_line(error)
        assert list(tmp_path.iterdir()) == []

    def test_parent_folders_are_made(self, make_result, tmp_path):
        assert results.save(make_result("lesion"), tmp_path / "a" / "b" / "result.nc").is_file()

    def test_a_new_file_has_ordinary_permissions(self, make_result, tmp_path):
        (tmp_path / "ordinary").touch()
        path = results.save(make_result("lesion"), tmp_path / "result.nc")
        assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode

    def test_a_folder_that_cannot_be_is_one_line(self, make_result, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(ResprobeError, match="file/result.nc: expected to write a file there, got .*--out") as error:
            results.save(make_result("lesion"), tmp_path / "file" / "result.nc")
        assert one_line(error)

    def test_a_folder_in_the_place_of_the_file(self, make_result, tmp_path):
        (tmp_path / "result.nc").mkdir()
        with pytest.raises(ResprobeError, match="got a folder"):
            results.save(make_result("lesion"), tmp_path / "result.nc")
        with pytest.raises(ResprobeError, match="expected to write a file there, got Is a directory"):
            results.save(make_result("lesion"), tmp_path / "result.nc", overwrite=True)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "expected a result file, got nothing there"),
            (b"", "expected a netCDF4 file, got one that can't be read"),
            (b"hello", "expected a netCDF4 file, got one that can't be read"),
        ],
    )
    def test_files_that_are_no_results(self, tmp_path, content, message):
        path = tmp_path / "result.nc"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ResprobeError, match=message) as error:
            results.open(path)
        assert one_line(error)
        assert str(path) in str(error.value)

    def test_a_truncated_file(self, make_result, tmp_path):
        path = results.save(make_result("lesion"), tmp_path / "result.nc")
        path.write_bytes(path.read_bytes()[:3000])
        with pytest.raises(ResprobeError, match="got one that can't be read"):
            results.open(path)

    def test_other_netcdf_files(self, tmp_path):
        xr.Dataset({"time": ("time", [1.0], {"units": "days since when"})}).to_netcdf(tmp_path / "other.nc")
        with pytest.raises(ResprobeError, match="other.nc: .*no result of resprobe") as error:
            results.open(tmp_path / "other.nc")
        assert one_line(error)


class TestExisting:
    def test_nothing_there(self, make_result, tmp_path):
        assert results.find_existing(tmp_path / "result.nc", "abc") is None

    def test_the_same_result_is_found_and_replaced(self, make_result, tmp_path):
        dataset = make_result("lesion")
        path = results.save(dataset, tmp_path / "result.nc")
        found = results.find_existing(path, results.fingerprint(dataset.attrs))
        xr.testing.assert_identical(found, dataset)
        again = dataset.assign_attrs(created_at="2030-01-01T00:00:00+00:00")
        assert results.open(results.save(again, path)).attrs["created_at"] == "2030-01-01T00:00:00+00:00"

    def test_another_result_is_kept(self, make_result, tmp_path):
        path = results.save(make_result("lesion", checkpoint="plain20.pt", bn_mode="batch"), tmp_path / "result.nc")
        other = make_result("lesion")
        message = 'got a lesion result of plain20.pt on digits with settings .*"bn_mode": "batch".*--overwrite'
        with pytest.raises(ResprobeError, match=message) as error:
            results.save(other, path)
        assert one_line(error)
        with pytest.raises(ResprobeError, match=message):
            results.find_existing(path, results.fingerprint(other.attrs))
        assert results.open(path).attrs["checkpoint"] == "plain20.pt"

    def test_another_file_is_kept(self, make_result, tmp_path):
        path = tmp_path / "thesis.txt"
        path.write_text("do not lose me")
        with pytest.raises(ResprobeError, match="can't be read.*--overwrite"):
            results.save(make_result("lesion"), path)
        assert path.read_text() == "do not lose me"

    def test_overwrite_replaces_anything(self, make_result, tmp_path):
        path = tmp_path / "result.nc"
        path.write_text("old")
        assert results.find_existing(path, "abc", overwrite=True) is None
        results.save(make_result("lesion"), path, overwrite=True)
        results.save(make_result("training"), path, overwrite=True)
        assert results.open(path).attrs["analysis"] == "training"

    @pytest.mark.parametrize("unknown", ["checkpoint_sha256", "data_sha256"])
    def test_results_of_unknown_origin_are_never_the_same(self, make_result, tmp_path, unknown):
        dataset = make_result("lesion").assign_attrs({unknown: ""})
        path = results.save(dataset, tmp_path / "result.nc")
        with pytest.raises(ResprobeError, match="--overwrite"):
            results.save(dataset, path)


def _is_link(descriptor: str) -> bool:
    """The descriptor that lists the folder is gone by the time it is read."""
    return os.path.islink(f"/proc/self/fd/{descriptor}")
