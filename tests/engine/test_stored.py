"""Compiled programs in files."""

import os
import pathlib
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.engine import stored


@pytest.fixture(name="place")
def fixture_place(monkeypatch, tmp_path):
  """A folder for programs."""
  monkeypatch.setattr(stored, "IS_USED", True)
  was = {
    name: getattr(jax.config, name)
    for name in ("jax_compilation_cache_dir", "jax_enable_compilation_cache")
  }
  jax.config.update("jax_compilation_cache_dir", str(tmp_path))
  jax.config.update("jax_enable_compilation_cache", True)
  yield tmp_path / "programs"
  for name, value in was.items():
    jax.config.update(name, value)
  stored.compilation_cache.reset_cache()


@pytest.fixture(name="compilations")
def fixture_compilations(monkeypatch):
  """What the compiler was given."""
  made, compile_ = [], jax.stages.Lowered.compile
  monkeypatch.setattr(
    jax.stages.Lowered,
    "compile",
    lambda self, options=None: made.append(self) or compile_(self, options),
  )
  return made


def _lowered(number=1.0):
  return jax.jit(lambda x: x * number).lower(jax.ShapeDtypeStruct((2,), np.float32))


def _cut(path):
  path.write_bytes(path.read_bytes()[:-9])


def _flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def _exchange(path):
  other = stored.compile_program(_lowered(7.0), None, None)[1]
  path.write_bytes((path.parent / other.name).read_bytes())


@pytest.mark.parametrize(
  "damage",
  [
    _cut,
    _flip,
    _exchange,
    lambda path: path.write_bytes(b""),
    lambda path: path.unlink(),
    lambda path: path.chmod(0o666),
  ],
)
def test_a_damaged_or_foreign_file_is_not_read_and_written_anew(
  place, compilations, damage
):
  """It would be another program, or code of another user."""
  _, file = stored.compile_program(_lowered(), None, None)
  stored.save_programs("key", {"double": file}, ("facts",))
  assert len(compilations) == 1
  path = place / file.name
  damage(path)
  before = len(compilations)
  assert stored.load_programs("key", None) is None
  compiled, again = stored.compile_program(_lowered(), None, None)
  assert len(compilations) == before + 1 and again == file
  np.testing.assert_array_equal(compiled(jnp.float32([1, 2])), [1, 2])
  programs, facts = stored.load_programs("key", None)
  assert len(compilations) == before + 1 and facts == ("facts",)
  np.testing.assert_array_equal(programs["double"](jnp.float32([1, 2])), [1, 2])


def test_other_programs_and_options_have_other_files(place):
  names = [
    stored.compile_program(lowered, options, None)[1].name
    for lowered, options in (
      (_lowered(), None),
      (_lowered(2.0), None),
      (_lowered(), {"xla_backend_optimization_level": 1}),
    )
  ]
  assert len(set(names)) == 3 == len(list(place.iterdir()))


@pytest.mark.parametrize("keep_unused", (True, False))
def test_programs_that_read_other_arguments_are_not_exchanged(place, keep_unused):
  """Their texts are equal where JAX has left out what a program does not read."""
  number = jax.ShapeDtypeStruct((), np.float32)
  values = []
  for read in (lambda x, y: x + 1, lambda x, y: y + 1):
    lowered = jax.jit(read, keep_unused=keep_unused).lower(number, number)
    compiled, file = stored.compile_program(lowered, None, None)
    assert (file is not None) == keep_unused
    values.append(float(compiled(jnp.float32(1), jnp.float32(5))))
  assert values == [2, 6]


def test_the_cache_of_jax_is_on_again(place):
  stored.compile_program(_lowered(), None, None)
  assert getattr(jax.config, "jax_enable_compilation_cache") and place.is_dir()


def test_a_program_that_calls_python_is_not_stored(place):
  """The address of the function is in it."""

  def call(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((2,), np.float32), x)

  lowered = jax.jit(call).lower(jax.ShapeDtypeStruct((2,), np.float32))
  _, file = stored.compile_program(lowered, None, None)
  assert file is None
  stored.save_programs("key", {"call": file}, ())
  assert not place.exists()


def test_the_folder_stays_bounded(place, monkeypatch):
  """What was not used for longest goes first."""
  monkeypatch.setattr(stored, "MOST_BYTES", 2500)
  for number in range(4):
    stored._write(str(number), b"x" * 1000)
    os.utime(place / str(number), (number, number + (number == 1) * 9))
  stored._write("new", b"x" * 1000)
  assert sorted(path.name for path in place.iterdir()) == ["1", "new"]


def test_nothing_is_stored_without_the_cache_of_jax(place):
  jax.config.update("jax_enable_compilation_cache", False)
  assert stored.folder() is None
  jax.config.update("jax_enable_compilation_cache", True)
  assert stored.folder() == place
  jax.config.update("jax_compilation_cache_dir", "gs://bucket/folder")
  assert stored.folder() is None


@pytest.mark.program
def test_a_process_that_lowers_nothing_finds_lapack(tmp_path):
  """Calling it before JAX has looked for it ends the process."""
  code = """
    import sys, jax, numpy as np
    from fedjax_alg.engine import stored
    held = stored.load_programs("key", None)
    assert (held is None) == (sys.argv[1] == "first")
    if held is None:
      lowered = jax.jit(jax.numpy.linalg.cholesky).lower(
        jax.ShapeDtypeStruct((2, 2), np.float32))
      _, file = stored.compile_program(lowered, None, None)
      stored.save_programs("key", {"a": file}, ())
    else:
      print(np.asarray(held.programs["a"](np.float32([[4, 0], [0, 9]]))).tolist())
  """
  for which in ("first", "second"):
    done = subprocess.run(
      [sys.executable, "-c", textwrap.dedent(code), which],
      env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)},
      cwd=pathlib.Path(__file__).parents[2],
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == 0, done.stderr
  assert done.stdout == "[[2.0, 0.0], [0.0, 3.0]]\n"
