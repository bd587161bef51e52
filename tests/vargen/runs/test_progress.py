"""Progress: silence when asked, lines in a log, nothing counted that nobody sees."""

from vargen.runs.progress import progress


def test_quiet_says_nothing(capsys):
    with progress(3, "calls", quiet=True) as shown:
        shown.mininterval = shown.delay = 0.0
        shown.update(3)
        assert shown.disable
    assert capsys.readouterr().err == ""


def test_a_log_gets_a_line_now_and_then(capsys):
    with progress(1000, "calls") as shown:
        shown.update()
        assert not shown.disable
        assert capsys.readouterr().err == ""
        shown.mininterval = shown.delay = 0.0
        shown.update(499)
    error = capsys.readouterr().err
    assert error.startswith("500 of 1,000 calls, about ") and error.count("\n") == 1


def test_a_log_says_what_is_waited_for_before_anything_is_counted(monkeypatch, capsys):
    monkeypatch.setattr("vargen.runs.progress.SECONDS_TO_FIRST_LINE", 0.0)
    with progress(3, "calls") as shown:
        shown._first_line.join()
    assert capsys.readouterr().err == "0 of 3 calls, about ? left\n"


def test_what_an_earlier_run_has_left_makes_nothing_faster(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    with progress(1000, "calls") as shown:
        shown.skip(900)
        now = 40.0
        assert str(shown) == "900 of 1,000 calls, about ? left"
        shown.update(10)
    assert capsys.readouterr().err == "910 of 1,000 calls, about 06:00 left\n"
    with progress(1000, "calls") as shown:
        now = 140.0  # a hundred seconds for kernels and the first call
        shown.begin(1)
        now = 180.0
        shown.update(9)
    assert capsys.readouterr().err == "10 of 1,000 calls, about 1:13:20 left\n"
    with progress(3, "calls", quiet=True) as shown:
        shown.skip(2)
        assert shown.n == 0
