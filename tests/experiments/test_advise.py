"""The command advise: a folder in, a few lines out."""

import pytest

from experiments import advise
import fedjax_alg as fa


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
  fed = fa.federate("digits", partition="classes:size_sigma=0", num_clients=40)
  result = fa.run("fedavg", fed, model="softmax", rounds=1, cohort_size=4)
  return result.save(tmp_path_factory.mktemp("advise") / "run")


def test_a_run_is_advised(folder, capsys):
  assert advise.main([str(folder)]) == 0
  out = capsys.readouterr().out
  assert out == f"{fa.advise(fa.load_run(folder))}\n"
  assert "nearest panel of the map: digits, two classes" in out and "apfl" in out


@pytest.mark.parametrize(
  "words, message",
  [
    ([], "no run: give the folder of one"),
    (["none"], "none"),
    (["a", "--rounds=2"], "rounds"),
  ],
)
def test_a_wrong_word_is_one_line(words, message, capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert advise.main(words) != 0
  err = capsys.readouterr().err
  assert message in err and err.count("\n") == 1 and "Traceback" not in err
