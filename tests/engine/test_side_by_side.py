import threading
import time

import pytest
import torch
import xarray as xr
from threadpoolctl import threadpool_info
from torch import nn

import resprobe
from resprobe.engine import scoring, side_by_side
from resprobe.engine.side_by_side import Crew, Tally

TWO = Crew(workers=2, threads=1)


def silent():
    return Tally(None, None)


class TestCrew:
    @pytest.mark.parametrize(
        ("threads", "batch", "crew"),
        [
            (1, (100, 3, 32, 32), None),
            (2, (100, 3, 32, 32), Crew(2, 1)),
            (2, (1, 3, 224, 224), None),
            (2, (25, 1, 8, 8), None),
            (8, (10, 3, 32, 32), Crew(3, 2)),
            (64, (100, 3, 32, 32), Crew(11, 5)),
            (4, (100, 1), None),
        ],
    )
    def test_workers_and_their_threads(self, monkeypatch, threads, batch, crew):
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        assert Crew.of(batch) == crew

    @pytest.mark.parametrize("size", [0, 1, 2, 7, 100])
    def test_parts_are_all_rows_once(self, size):
        parts = list(Crew(3, 1).parts(size))
        assert [row for part in parts for row in range(size)[part]] == list(range(size))
        assert len(parts) == max(1, min(3, size))
        assert max(part.stop - part.start for part in parts) - min(part.stop - part.start for part in parts) <= 1


class TestTally:
    def test_other_threads_count_and_do_not_tell(self):
        told = []
        tally = Tally(lambda *news: told.append((threading.get_ident(), *news)), 5)
        thread = threading.Thread(target=tally.add, args=(3,))
        thread.start()
        thread.join()
        assert told == []
        tally.report()
        tally.report()
        tally.add(2)
        assert told == [(threading.get_ident(), 3, 5), (threading.get_ident(), 5, 5)]


class TestSideBySide:
    def test_order_of_the_jobs_though_the_first_is_last(self):
        second_done = threading.Event()

        def work(job):
            if job == 0:
                assert second_done.wait(30)
            if job == 1:
                second_done.set()
            return job

        assert list(side_by_side.side_by_side(work, range(7), TWO, silent())) == list(range(7))

    def test_threads_of_an_operation(self):
        before = threadpool_info()

        def work(_):
            return torch.get_num_threads(), torch.is_inference_mode_enabled(), threading.get_ident()

        crew = Crew(workers=2, threads=3)
        seen = list(side_by_side.side_by_side(work, range(4), crew, silent()))
        assert {threads for threads, _, _ in seen} == {3}
        assert all(inference for _, inference, _ in seen)
        assert threading.get_ident() not in {thread for _, _, thread in seen}
        assert threadpool_info() == before

    def test_jobs_are_read_a_few_ahead(self):
        read = []
        measured = side_by_side.side_by_side(
            lambda job: job, (read.append(job) or job for job in range(50)), TWO, silent()
        )
        next(measured)
        assert len(read) <= 4
        measured.close()

    @pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
    def test_an_error_ends_the_jobs_under_way(self, error):
        tally = silent()
        under_way = threading.Event()
        ended = []

        def work(job):
            if job == 0:
                assert under_way.wait(30)
                raise error
            under_way.set()
            try:
                for _ in range(3000):
                    time.sleep(0.01)
                    tally.add(1)
            except BaseException as stopped:
                ended.append(type(stopped).__name__)
                raise

        with pytest.raises(type(error)):
            list(side_by_side.side_by_side(work, range(9), TWO, tally))
        assert set(ended) == {"CancelledError"}
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("resprobe")]

    def test_progress_is_told_while_a_job_lasts(self):
        told = threading.Event()
        tally = Tally(lambda done, total: told.set(), None)

        def work(_):
            tally.add(1)
            assert told.wait(30)

        list(side_by_side.side_by_side(work, [0], TWO, tally))


class Stateful(nn.Module):
    """Keeps its input between two statements, so that two threads in it would mix images up; fx can't look inside."""

    def forward(self, x):
        self.kept = x
        return self.kept if x.sum() > 0 else self.kept + 0


@pytest.fixture
def crews(monkeypatch):
    """Let two workers measure batches of any size; gives the crews that were at work."""
    used = []

    def spy(work, jobs, crew, tally):
        used.append(crew)
        return side_by_side.side_by_side(work, jobs, crew, tally)

    monkeypatch.setattr(scoring.Crew, "of", lambda batch: TWO)
    monkeypatch.setattr(scoring, "side_by_side", spy)
    return used


class TestAnalyses:
    """Two workers against one."""

    def assert_same(self, result, alone):
        for name in alone.data_vars:
            if alone[name].dtype.kind == "f":
                xr.testing.assert_allclose(result[name], alone[name], rtol=1e-5)
            else:
                xr.testing.assert_equal(result[name], alone[name])

    @pytest.mark.parametrize(
        ("name", "norm", "precision"),
        [
            ("resnet14", "batch", "float32"),
            ("resnet14", "none", "float64"),
            ("preresnet14", "batch", "float32"),
            ("plain8", "batch", "float32"),
        ],
    )
    def test_lesion(self, make_net, digits, request, name, norm, precision):
        net = make_net(name, norm=norm)
        alone = resprobe.lesion(net, digits, per_image=True, precision=precision)
        crews = request.getfixturevalue("crews")
        result = resprobe.lesion(net, digits, per_image=True, precision=precision)
        assert crews == [TWO]
        self.assert_same(result, alone)
        assert result.label.equals(alone.label)

    def test_other_versions(self, make_net, digits, request):
        net = make_net("resnet14")

        def measure():
            return (
                resprobe.lesion_curve(net, digits, num_deleted=[1, 3], draws=2),
                resprobe.reorder(net, digits, num_swaps=[1, 2], draws=2),
            )

        alone = measure()
        crews = request.getfixturevalue("crews")
        for result, expected in zip(measure(), alone, strict=True):
            self.assert_same(result, expected)
        assert len(crews) == 2

    def test_progress(self, make_net, digits, crews):
        told = []
        resprobe.lesion(make_net("resnet8"), digits, progress=lambda *news: told.append(news))
        assert crews
        assert told[-1] == (60 * 4, 60 * 4)
        assert [done for done, _ in told] == sorted({done for done, _ in told})

    def test_error_of_a_worker_names_the_image(self, make_net, digits, crews):
        batches = [(images, labels) for images, labels in digits]
        batches[1][1][20] = 10
        with pytest.raises(resprobe.ResprobeError, match="expected 0 to 9, the model's classes, got 10 at image 45"):
            resprobe.lesion(make_net("resnet8"), batches)
        assert crews

    def test_loss_that_is_not_finite(self, make_net, digits, crews):
        batches = [(images, labels) for images, labels in digits]
        batches[0][0][3] = torch.nan
        with pytest.raises(resprobe.ResprobeError, match="expected finite numbers, got nan at image 3") as caught:
            resprobe.lesion(make_net("resnet8"), batches)
        # though the traceback keeps alive what was under way
        assert caught.tb
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("resprobe")]

    def test_a_model_that_keeps_something_between_calls(self, make_net, digits, crews):
        net = make_net("resnet8")
        net.bn1 = nn.Sequential(net.bn1, Stateful())
        assert resprobe.lesion(net, digits).sizes["unit"] == 3
        assert crews == []

    def test_a_model_that_draws(self, digits, crews, make_net):
        class Noisy(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = make_net("resnet8")

            def forward(self, x):
                return self.net(x + 0 * torch.randn_like(x))

        before = torch.get_rng_state()
        assert resprobe.lesion(Noisy(), digits).sizes["unit"] == 3
        assert crews == []
        assert torch.equal(torch.get_rng_state(), before)

    def test_images_that_influence_each_other(self, make_net, digits, crews):
        class Centred(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = make_net("resnet8")

            def forward(self, x):
                return self.net(x - x.mean(0, keepdim=True))

        result = resprobe.lesion(Centred(), digits)
        assert crews == []
        with torch.inference_mode():
            expected = sum(int((Centred()(images).argmax(1) == labels).sum()) for images, labels in digits)
        assert int(result.baseline_num_correct) == expected

    def test_a_precision_that_holds_in_one_thread_alone(self, make_net, digits, crews):
        with torch.autocast("cpu", torch.bfloat16):
            resprobe.lesion(make_net("resnet8"), digits)
        assert crews == []
