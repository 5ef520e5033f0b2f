"""Flags: what is refused, in one line; presets; replay; help."""

import dataclasses
import json
import subprocess
import sys

import pytest

from experiments.cli import config, flags, resume
from fedjax_alg import registry

pytestmark = pytest.mark.fast

# words on the command line -> what the one line must name
REFUSED = [
    ("", ["--algorithm", "fedavg"]),
    ("--algorithm=fedvg", ["--algorithm=fedvg", "did you mean 'fedavg'"]),
    ("--algorithm=fedavg --dataset=mnst", ["mnst", "'mnist'"]),
    ("--algorithm=fedavg --model=softmx", ["softmx", "'softmax'"]),
    ("--algorithm=fedavg --partition=dirchlet", ["dirchlet", "'dirichlet'"]),
    ("--algorithm=fedavg --features=hogg", ["hogg", "'hog'"]),
    ("--algorithm=fedavg --beta1=0.5", ["--beta1", "fedavg", "ma_fsvrg"]),
    ("--algorithm=fedavg --num_models=2", ["--num_models", "fedavg"]),
    ("--algorithm=fedavg --participation=0", ["participation", "more than 0"]),
    ("--algorithm=fedavg --participation=1.5", ["1.5", "at most 1"]),
    ("--algorithm=fedavg --participation=nan", ["participation", "nan"]),
    ("--algorithm=fedavg --participation=0.001", ["gives 0 of 100"]),
    ("--algorithm=fedavg --cohort_size=101", ["101", "100 clients"]),
    ("--algorithm=fedavg --cohort_size=3 --participation=.1",
     ["give one of them"]),
    ("--algorithm=ma_fsvrg --num_models=11", ["--num_models=11", "10"]),
    ("--algorithm=fedavg --client_lr=-0.1", ["--client_lr=-0.1", "more than"]),
    ("--algorithm=fedavg --client_lr=inf", ["--client_lr=inf", "finite"]),
    ("--algorithm=fedavg --l2=-1", ["--l2=-1", "at least 0"]),
    ("--algorithm=fedavg --rounds=0", ["--rounds=0", "at least 1"]),
    ("--algorithm=fedavg --rounds=many",
     ["--rounds=many: must be a whole number"]),
    ("--algorithm=fedavg --client_clip=abc",
     ["--client_clip=abc: must be a number"]),
    ("--algorithm=fedavg --resume=when", ["--resume=when: must be true or"]),
    ("--algorithm=fedavg --client_lrr=1",
     ["--client_lrr: unknown flag, did you mean 'client_lr'?", "--help"]),
    ("--algorithm=fedavg --targets=90", ["--targets=90: ", "0.9 is 90 %"]),
    ("--algorithm=fedavg --num_clients=5",
     ["--participation=0.1 (the default): gives 0 of 5 clients a round; give "
      "more than 0.1, or --cohort_size"]),
    ("--algorithm=fedavg --sampling=availability --availability=0.1,0.9 "
     "--availability_file=x.txt",
     ["--availability and --availability_file: give one of them"]),
    ("--algorithm=fedavg --sampling=availability --availability_seed=1 "
     "--availability_file=x.txt", ["--availability_seed and --availability_"]),
    ("--algorithm=mine.py", ["--algorithm=mine.py: a file needs the name"]),
    ("--algorithm=fedavg --num_seeds=0", ["--num_seeds=0"]),
    ("--algorithm=fedavg --nonsense=1", ["nonsense"]),
    ("--algorithm=fedavg stray", ["'stray'"]),
    ("--algorithm=fedavg --hog_bins=5", ["--hog_bins", "--features=none"]),
    ("--algorithm=fedavg --dirichlet_alpha=1", ["--dirichlet_alpha", "iid"]),
    ("--algorithm=fedavg --data_dir=/x", ["--data_dir", "digits"]),
    ("--algorithm=fedavg --dataset=npz", ["--data_path", "missing"]),
    ("--algorithm=fedavg --partition=natural", ["natural", "digits"]),
    ("--algorithm=fedavg --model=cnn --features=flatten", ["cnn", "images"]),
    ("--algorithm=fedavg --eval_protocols=globl", ["globl", "'global'"]),
    ("--algorithm=fedavg --local_steps=3 --local_epochs=2",
     ["--local_steps", "--local_epochs"]),
    ("--algorithm=central --participation=0.1", ["--participation", "central"]),
    ("--algorithm=ma_fsvrg --beta1=1", ["--beta1=1", "less than 1"]),
    ("--algorithm=ma_fsvrg --central_rule=adam", ["adam", "printed"]),
    ("--algorithm=fedavg --resume --overwrite", ["--resume", "--overwrite"]),
    ("--algorithm=fedavg --flagfile=nowhere.flags", ["nowhere.flags"]),
    ("--algorithm=fedavg --targets=0.9,high", ["--targets"]),
    ("--algorithm=fedavg --validation_clients=-1",
     ["--validation_clients=-1", "at least 0"]),
    ("--algorithm=fedavg --validation_clients=few",
     ["validation_clients", "few"]),
    ("--algorithm=fedavg --validation_clients=100",
     ["--validation_clients=100", "leaves none of the 100", "at most 99"]),
    ("--algorithm=central --num_clients=7 --validation_clients=8",
     ["--validation_clients=8", "leaves none of the 7"]),
    ("--algorithm=fedavg --dataset=synthetic --validation_clients=30",
     ["--validation_clients=30", "leaves none of the 30"]),
    ("--algorithm=fedavg --validation_clients=60 --cohort_size=41",
     ["--cohort_size=41", "40 clients that --validation_clients=60 leaves"]),
    ("--algorithm=fedavg --validation_clients=97",
     ["--participation=0.1", "0 of 3 clients that --validation_clients=97"]),
    ("--algorithm=ma_fsvrg --num_models=3 --validation_clients=80",
     ["--num_models=3", "20 that --validation_clients=80 leaves"]),
    ("--algorithm=fedavg --eval_protocols=global,validation",
     ["--eval_protocols=validation", "--validation_clients"]),
    ("--algorithm=clsfsvrg",
     ["--algorithm=clsfsvrg", "--validation_clients", "at least 1"]),
    ("--server=cg_line_search",
     ["--server=cg_line_search", "--validation_clients", "at least 1"]),
    ("--algorithm=clsfsvrg --validation_clients=5 --gamma=1",
     ["--gamma=1", "more than 0", "less than 1"]),
    ("--algorithm=clsfsvrg --validation_clients=5 --gamma=0", ["--gamma=0"]),
    ("--algorithm=cfsvrg --beta_rule=pr", ["--beta_rule=pr", "fr, pr+"]),
    ("--server=nesterov", ["--server=nesterov", "average", "cg_line_search"]),
    ("--client_update=prx", ["--client_update=prx", "prox"]),
    ("--client_update=sgd --mu=1",
     ["--mu", "not read with --client_update=sgd", "prox"]),
    ("--client_update=mime --base_momentum=.5",
     ["--base_momentum", "--base=sgd", "momentum|adam"]),
    ("--client_update=svrg --threshold=3",
     ["--threshold", "--num_models=1", "--num_models of 2 or more"]),
    ("--server=average --gamma=.5", ["--gamma", "--server=average"]),
    ("--client_update=dyn --num_models=3",
     ["--num_models=3", "linear term belongs to one model"]),
    ("--client_update=losac --num_models=2",
     ["--num_models=2", "delayed gradients"]),
    ("--client_update=mime --base=adam --num_models=2",
     ["--num_models=2", "statistics belong to one model"]),
    ("--client_update=sgd --num_models=2 --grouping=gradient",
     ["--grouping=gradient", "--client_update=sgd", "anchor gradients"]),
    ("--algorithm=losac --variant=table --local_steps=0",
     ["--local_steps=0", "--variant=table"]),
    ("--algorithm=losac --variant=table --batch_size=0",
     ["--batch_size=0", "--variant=table"]),
    ("--algorithm=per_fedavg --hf_delta=.1", ["--hf_delta", "--hessian=fo"]),
    ("--algorithm=fedavg --newcomers_at=10", ["--newcomers_at=10", "COUNT"]),
    ("--algorithm=fedavg --newcomers_at=1:2:3", ["1:2:3", "ROUND:COUNT"]),
    ("--algorithm=fedavg --newcomers_at=a:b", ["a:b", "whole numbers"]),
    ("--algorithm=fedavg --newcomers_at=", ["--newcomers_at=", "ROUND:COUNT"]),
    ("--algorithm=fedavg --newcomers_at=0:5", ["0:5", "at least 1"]),
    ("--algorithm=fedavg --newcomers_at=5:0", ["5:0", "at least 1"]),
    ("--algorithm=fedavg --newcomers_at=5:1,5:2", ["5:1,5:2", "ascend"]),
    ("--algorithm=fedavg --newcomers_at=5:1,100:2",
     ["5:1,100:2", "never join", "--rounds=100", "at most 99"]),
    ("--algorithm=fedavg --newcomers_at=5:60,9:31",
     ["leaves 9 of the 100 clients", "at least 10"]),
    ("--algorithm=fedavg --participation=1 --newcomers_at=5:1",
     ["leaves 99 of the 100", "at least 100"]),
    ("--algorithm=central --newcomers_at=5:100", ["leaves 0 of the 100"]),
    ("--algorithm=fedavg --validation_clients=50 --newcomers_at=5:46",
     ["leaves 4 of the 50 clients", "at least 5"]),
    ("--algorithm=fedavg --eval_protocols=newcomers",
     ["--eval_protocols=newcomers", "needs --newcomers_at"]),
    ("--algorithm=fedavg --newcomers_at=5:1 --shift=increment",
     ["--newcomers_at and --shift", "one of them"]),
    ("--algorithm=losac --variant=table --newcomers_at=5:1",
     ["--newcomers_at", "--variant=table"]),
    ("--algorithm=losac --variant=table --shift=swap_part",
     ["--shift", "--variant=table"]),
    ("--algorithm=fedavg --shift=swap", ["--shift=swap", "swap_all"]),
    ("--algorithm=fedavg --shift=swap_all --shift_every=0",
     ["--shift_every=0", "at least 1"]),
    ("--algorithm=fedavg --shift_every=5", ["--shift_every", "--shift=none"]),
    ("--algorithm=fedavg --shift=increment --shift_share=.1",
     ["--shift_share", "--shift=increment", "swap_part"]),
    ("--algorithm=fedavg --shift=swap_all --shift_share=1.1",
     ["--shift_share=1.1", "at most 1"]),
    ("--algorithm=fedavg --shift=swap_all --shift_share=nan", ["nan"]),
    ("--algorithm=fedavg --shift=swap_all --shift_share=.019",
     ["--shift_share=0.019", "no pair of 100 clients", "at least 0.02"]),
    ("--algorithm=fedavg --dataset=femnist --femnist=leeky",
     ["--femnist=leeky", "'leaky'", "fixed"]),
    ("--algorithm=fedavg --femnist=leaky", ["--femnist", "--dataset=digits"]),
    ("--algorithm=fedavg --dataset=femnist --partition=iid",
     ["--partition=iid", "femnist", "natural"]),
    ("--algorithm=fedavg --dataset=femnist --data_dir=/x --data_path=/y.npz",
     ["--data_dir", "--data_path", "one of them"]),
    ("--algorithm=fedavg --dataset=sent140",
     ["--model=softmax", "--dataset=sent140", "--model=lstm"]),
    ("--algorithm=fedavg --dataset=sent140 --model=lstm --features=flatten",
     ["--features=flatten", "only none"]),
    ("--algorithm=fedavg --dataset=sent140 --model=lstm --data_path=/x",
     ["--data_path", "--dataset=sent140"]),
    ("--algorithm=fedavg --dataset=sent140 --model=lstm --vocabulary=0",
     ["--vocabulary=0", "at least 1"]),
    ("--algorithm=fedavg --dataset=mnist --model=lstm",
     ["--model=lstm", "mnist", "sent140"]),
    ("--algorithm=fedavg --dataset=shakespeare", ["--data_path: missing"]),
    ("--algorithm=fedavg --dataset=shakespeare --data_path=/x",
     ["--model=softmax", "characters", "--model=lstm"]),
    ("--algorithm=fedavg --dataset=shakespeare --data_path=/x --model=lstm "
     "--vocabulary=80", ["--vocabulary=80", "80 characters"]),
    ("--algorithm=fedavg --dataset=shakespeare --data_path=/x --model=lstm "
     "--partition=iid", ["--partition=iid", "shakespeare", "natural"]),
    ("--algorithm=fedavg --dataset=sent140 --model=lstm --lstm_widths=8,0",
     ["--lstm_widths=(8, 0)", "at least 1"]),
    ("--algorithm=fedavg --lstm_widths=8", ["--lstm_widths", "softmax"]),
    ("--algorithm=fedavg --window_stride=2", ["--window_stride", "digits"]),
    ("--algorithm=fedavg --dataset=kmnist --partition=natural",
     ["--partition=natural", "kmnist names no clients"]),
    ("--algorithm=fedavg --dataset=tfds:made/up --model=stack "
     "--data_path=/x", ["--data_path", "--dataset=tfds:made/up", "idx"]),
    ("--algorithm=fedavg --dataset=fashion_mnist --model=stack "
     "--layers=conv29-4", ["kernel 29 is larger than its 28x28 input"]),
    ("--algorithm=fedavg --partition_file=/x --partition=iid",
     ["--partition_file", "--partition=iid", "file"]),
    ("--algorithm=fedavg --dataset=npz --data_path=/x --sequence_length=9",
     ["--sequence_length", "--dataset=npz", "sent140"]),
    ("--algorithm=fedavg --embedding=learned", ["--embedding", "softmax"]),
    ("--algorithm=fedavg --device_cores=4", ["--device_cores=4", "whole"]),
    ("--algorithm=fedavg --device_cores=1,2,3",
     ["--device_cores=1,2,3", "LEAST,MOST"]),
    ("--algorithm=fedavg --device_cores=1.5,2", ["1.5,2", "whole numbers"]),
    ("--algorithm=fedavg --device_cores=0,4", ["0,4", "between 1e-09"]),
    ("--algorithm=fedavg --device_cores=4,1", ["4,1", "in this order"]),
    ("--algorithm=fedavg --bandwidth_gbps=1,fast",
     ["--bandwidth_gbps=1,fast", "two numbers"]),
    ("--algorithm=fedavg --bandwidth_gbps=nan,1",
     ["--bandwidth_gbps=nan,1", "between 1e-09"]),
    ("--algorithm=fedavg --bandwidth_gbps=1,inf", ["1,inf"]),
    ("--algorithm=fedavg --core_gflops=0",
     ["--core_gflops=0", "at least 1e-09"]),
    ("--algorithm=fedavg --batch_ms=-1", ["--batch_ms=-1", "at least 1e-09"]),
    ("--algorithm=fedavg --server_gflops=inf", ["--server_gflops=inf"]),
    ("--algorithm=fedavg --clock_seed=-1", ["--clock_seed=-1", "at least 0"]),
    ("--algorithm=fedavg --dataset=sent140 --model=lstm --embedding=glove",
     ["--embedding=glove", "frozen, learned"]),
    ("--algorithm=fedavg --model=stack --layers=conv9-4",
     ["--layers=conv9-4", "kernel 9 is larger than its 8x8 input"]),
    ("--algorithm=fedavg --model=stack --layers=foo",
     ["--layers=foo", "convK-C"]),
    ("--algorithm=fedavg --model=stack --layers=dense0",
     ["dense0", "at least 1"]),
    ("--algorithm=fedavg --model=stack --features=flatten",
     ["--layers=conv3-16", "needs images", "--features=flatten"]),
    ("--algorithm=fedavg --layers=dense4", ["--layers", "--model=softmax"]),
    ("--algorithm=fedacnnl --model=lstm", ["--model=lstm", "closed form"]),
    ("--algorithm=fedacnnl --ridge=-1", ["--ridge=-1", "at least 0"]),
    ("--algorithm=fedacnnl --ridge=1,x", ["--ridge=1,x", "numbers"]),
    ("--algorithm=fedacnnl --model=mlp --hidden=8,8 --ridge=1,2",
     ["--ridge=1,2", "2 numbers for 3 layers"]),
    ("--algorithm=pfedacnnl --personal_ridge=0",
     ["--personal_ridge=0", "more than 0"]),
    ("--algorithm=pfedacnnl --num_groups=101",
     ["--num_groups=101", "100 clients"]),
    ("--algorithm=pfedacnnl --noclustering --num_groups=3",
     ["--num_groups", "--clustering"]),
    ("--algorithm=fedacnnl --map_seeds=vmap",
     ["--map_seeds=vmap", "sequential"]),
    ("--algorithm=fedacnnl --participation=0.5",
     ["--participation", "fedacnnl"]),
    ("--algorithm=afl --model=mlp", ["--algorithm=afl", "--model=softmax"]),
    ("--algorithm=fedavg --sampling=siz", ["--sampling=siz", "'size'"]),
    ("--algorithm=fedavg --sampling=availability --availability=1,0",
     ["--availability=1,0", "least and the most"]),
    ("--algorithm=fedavg --availability=0,1",
     ["--availability", "not read with --sampling=uniform (only with "
      "--sampling=availability)"]),
    ("--algorithm=scaffold_adam",
     ["--client_update=scaffold with --server=adam"]),
    ("--algorithm=fedzo --directions=0", ["--directions=0", "at least 1"]),
    ("--algorithm=baffle --protocol=own", ["--protocol=own", "per_client"]),
    ("--algorithm=pfedme --directions=3", ["--directions", "pfedme"]),
    ("--algorithm=fedavg --seed=4294967295 --num_seeds=2",
     ["--num_seeds=2", "4294967296"]),
    ("--algorithm=fedavg --batch_size=99999999999999999999",
     ["--batch_size=99999999999999999999", "at most"]),
    ("--algorithm=fedavg --undefok=nosuch --nosuch=1", ["--undefok=nosuch"]),
    ("--algorithm=fedavg --shift=swap_all --shift_every=100 --rounds=100",
     ["--shift_every=100", "at most 99"]),
    ("--algorithm=fedacnnl --code=position --code_high_passed=1",
     ["--code_high_passed=1", "at most 0", "--model=softmax"]),
    ("--algorithm=fedacnnl --batch_size=513",
     ["--batch_size=513", "at most --max_batch_size=512"]),
    ("--algorithm=fedavg --dataset=npz --data_path=~nosuchuser/x",
     ["--data_path=~nosuchuser/x", "no such user"]),
    ("--flagfile=~nosuchuser/x", ["--flagfile=~nosuchuser/x", "user"]),
    ("--algorithm=fedavg --out_dir --resume",
     ["--out_dir: has no value; must be --out_dir=VALUE"]),
    ("--algorithm=fedavg --out_dir", ["--out_dir"]),
    ("--algorithm=fedavg --resume yes", ["'yes': not a flag"]),
    ("--algorithm=fedavg --dataset=synthetic --partition=iid",
     ["--partition=iid", "synthetic comes with its clients"]),
]


@pytest.mark.parametrize("words,named", REFUSED, ids=[r[0] for r in REFUSED])
def test_refused_in_one_line(words, named):
  with pytest.raises(ValueError) as caught:
    config.parse(words.split())
  message = str(caught.value)
  assert "\n" not in message
  for part in named:
    assert part in message


def test_a_value_may_be_a_word_of_its_own():
  assert config.parse("--algorithm fedavg --client_lr 1e-2 --resume --rounds 3"
                      .split()).run.rounds == 3


@pytest.mark.program
def test_parsing_does_not_start_jax():
  """Else the cores would not become devices any more."""
  code = ("from experiments.cli import config\n"
          "for name in ('fedavg', 'losac', 'cfsvrg', 'central'):\n"
          "  config.parse(['--algorithm=' + name])\n"
          "from jax._src import xla_bridge\n"
          "raise SystemExit(len(xla_bridge._backends))\n")
  subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("preset", config.presets())
def test_preset_parses(preset):
  words = [f"--flagfile={preset}"]
  paper, *folder, name = preset.split("/")
  if folder:  # methods, or methods_<data>: what the figures put around it
    general = f"{paper}/methods/{name}"
    if general != preset and general in config.presets():
      words.insert(0, f"--flagfile={general}")
    usual = {"fedgroup": "mnist_mclr", "analytic": "mnist_lr",
             "trust": "niid_bench", "beyond": folder[0]}
    data = folder[0].partition("_")[2] or usual.get(paper, "mnist")
    words.append(f"--flagfile={paper}/{data}.flags")
  if "algorithm=" not in "".join(config.expand_flagfiles(words)):
    words.append("--algorithm=fedavg")
  parsed = config.parse(words)
  assert parsed.run.rounds >= 1


@pytest.mark.program
def test_flag_files_that_are_no_text_or_too_many(tmp_path):
  (tmp_path / "binary.flags").write_bytes(b"\xff\xfe\x00")
  with pytest.raises(config.UsageError, match="binary.flags: cannot be read"):
    config.parse([f"--flagfile={tmp_path}/binary.flags"])
  for i in range(8):  # each names the next ten times: 10^8 words
    (tmp_path / f"{i}.flags").write_text(
        f"--flagfile={tmp_path}/{i + 1}.flags\n" * 10)
  (tmp_path / "8.flags").write_text("--rounds=3\n")
  with pytest.raises(config.UsageError, match="more than 10,000 flags"):
    config.parse([f"--flagfile={tmp_path}/0.flags"])


def test_there_are_presets():
  assert "diversified/headline.flags" in config.presets()
  assert "diversified/stated.flags" in config.presets()


def test_the_headline_has_what_validation_chose_for_ma():
  headline = config.parse(["--flagfile=diversified/headline.flags"])
  tuned = config.parse(["--flagfile=diversified/headline.flags",
                        "--flagfile=diversified/methods/ma_fsvrg.flags"])
  assert headline.hparams == tuned.hparams
  assert "chosen: test" not in (
      config.PRESETS / "diversified" / "headline.flags").read_text("utf-8")


def test_stated_preset_has_the_papers_values():
  parsed = config.parse(["--flagfile=diversified/stated.flags"])
  assert parsed.run.l2 == 0.01
  assert parsed.data.num_clients == 400
  assert parsed.hparams["beta1"] == 0.0
  assert parsed.hparams["beta2"] == 0.999
  assert parsed.hparams["client_lr"] == 12
  assert parsed.hparams["num_models"] == parsed.hparams["threshold"] == 4


def test_clients_that_come_with_the_data():
  letters = config.parse(["--algorithm=fedavg", "--dataset=femnist"])
  data = letters.data
  assert data.partition == "natural" and data.num_clients == 200
  assert data.femnist == "fixed" and data.min_client_size is None
  tweets = config.parse("--algorithm=fedavg --dataset=sent140 --model=lstm "
                        "--vocabulary=500 --num_clients=9 "
                        "--cohort_size=2".split())
  data = tweets.data
  assert data.partition == "natural" and data.min_client_size == 20
  assert (data.vocabulary, data.sequence_length) == (500, 25)
  assert tweets.run.embedding == "frozen"


def test_flags_replay(tmp_path):
  words = ("--algorithm=ga_fsvrg --num_models=3 --noaccelerate "
           "--cohort_size=12 "
           "--partition=classes --eval_protocols=global,local --hidden=4,5 "
           "--model=mlp --num_seeds=2").split()
  first = config.parse(words)
  file = tmp_path / "flags.txt"
  file.write_text("\n".join(first.flag_lines()) + "\n", encoding="utf-8")
  again = config.parse([f"--flagfile={file}"])
  assert again == first
  assert again.identity() == first.identity()


def test_a_part_of_a_preset_can_be_switched_off(tmp_path):
  """Without it a preset's number refuses the flag that makes it unread."""
  file = tmp_path / "a.flags"
  file.write_text("--algorithm=ma_fsvrg\n--server_lr=0.05\n--beta1=0.8\n")
  words = [f"--flagfile={file}", "--noaccelerate"]
  config.parse(words)
  with pytest.raises(config.UsageError, match="^--beta1: not read with --acc"):
    config.parse([*words, "--beta1=0.5"])


def test_identity_ignores_where_and_sees_what():
  base = ["--algorithm=fedavg"]
  one = config.parse(base).identity()
  assert config.parse([*base, "--out_dir=x", "--rounds=7"]).identity() == one
  assert config.parse([*base, "--seed=1"]).identity() != one
  assert config.parse([*base, "--client_lr=0.2"]).identity() != one
  assert config.parse([*base, "--tensorboard"]).identity() == one
  assert config.parse([*base, "--stop_at=train:loss:1",
                       "--eval_protocols=train"]).identity() != (
      config.parse([*base, "--eval_protocols=train"]).identity())


def test_identity_is_that_of_older_versions():
  """Of version 0.2.0, so that finished runs are found again."""
  parsed = config.parse(["--algorithm=fedavg"])
  assert {"stop_at", "patience"} <= set(parsed.values)  # not in the hash
  assert parsed.identity() == (
      "a7529411daa769d8f06606fe8c8fe1cab3f000dc3df870feb02d77d7c3b687c6")


@pytest.mark.parametrize("words, identity", [
    ("--algorithm=fedavg", "a7529411daa769d8"),
    ("--algorithm=fedgroup --num_groups=3", "f30acbe8b0cd386c"),
    ("--client_update=scaffold --server=adam", "3086c027050b373a"),
    ("--algorithm=fedavg --dataset=sent140 --model=lstm", "ca91a9a018d49040")])
def test_identity_is_that_of_version_0_2(words, identity):
  """What came later is not in it at its default, and is in it otherwise."""
  parsed = config.parse(words.split())
  assert parsed.identity().startswith(identity)
  other = config.parse([*words.split(), "--client_clip=1"])
  assert not other.identity().startswith(identity)


def test_a_folder_of_version_0_2_is_resumed(tmp_path):
  """Its config.json does not have the options that came later."""
  parsed = config.parse(["--algorithm=fedavg"])
  later = {name for name, field in parsed.fields.items()
           if field.metadata["later"]}
  assert "client_optimizer" in later and "client_lr" not in later
  flags = {k: v for k, v in parsed.values.items() if k not in later}
  hparams = {k: v for k, v in parsed.hparams.items() if k not in later}
  (tmp_path / "config.json").write_text(json.dumps(
      {"identity": parsed.identity(), "flags": flags, "hparams": hparams}))
  resume.check_same(tmp_path, parsed)
  with pytest.raises(config.UsageError, match=(
      "^--client_optimizer=adam: the run in .* has sgd; resume with")):
    resume.check_same(tmp_path, config.parse(
        ["--algorithm=fedavg", "--client_optimizer=adam"]))
  # The cohorts of very many clients were drawn in another way.
  for clients, more in ((20_000, ()), (20_001, ("--newcomers_at=2:3",)),
                        (20_001, ())):
    parsed = config.parse(["--algorithm=fedavg", *more])
    (tmp_path / "config.json").write_text(json.dumps(
        {"identity": parsed.identity(), "flags": flags, "hparams": hparams,
         "plan": {"clients": clients}}))
    if clients == 20_000 or more:
      resume.check_same(tmp_path, parsed)
  with pytest.raises(config.UsageError, match="of an earlier version, which"):
    resume.check_same(tmp_path, parsed)


@pytest.mark.parametrize("flags", [
    "--sampling=availability --availability_file", "--partition_file"])
def test_a_file_that_a_flag_names_counts_by_its_content(tmp_path, flags):
  path = tmp_path / "chances.txt"
  found = []
  for text in ("0.5\n" * 100, "0.5\n" * 99 + "1\n", "0.5\n" * 100):
    path.write_text(text, encoding="utf-8")
    found.append(config.parse([
        "--algorithm=fedavg", *f"{flags}={path}".split()]).identity())
  assert found[0] == found[2] != found[1]


def test_options_that_came_later_are_in_the_identity():
  words = ["--algorithm=fedavg", "--dataset=shakespeare", "--data_path=/x",
           "--model=lstm"]
  parsed = config.parse(words)
  assert (parsed.data.sequence_length, parsed.run.embedding) == (80, "learned")
  assert parsed.data.partition == "natural"
  every = {config.parse([*words, *more]).identity() for more in (
      [], ["--window_stride=2"], ["--lstm_widths=8,8"], ["--embedding_size=4"],
      ["--partition_file=p.npz"])}
  assert len(every) == 5


def test_validation_clients_leave_the_rest():
  parsed = config.parse("--algorithm=fedavg --validation_clients=60 "
                        "--cohort_size=40 --eval_protocols=validation".split())
  assert parsed.data.validation_clients == 60
  assert parsed.data.num_clients == 100
  assert config.parse(["--algorithm=fedavg"]).run.eval_protocols == (
      "global", "local", "preferred")
  assert parsed.identity() != config.parse(
      "--algorithm=fedavg --validation_clients=59 --cohort_size=40 "
      "--eval_protocols=validation".split()).identity()


def test_newcomers_bring_their_protocol(tmp_path):
  words = "--algorithm=fedavg --newcomers_at=5:60,7:30".split()
  parsed = config.parse(words)
  assert parsed.data.newcomers_at == ((5, 60), (7, 30))
  assert parsed.run.eval_protocols == (
      "global", "local", "preferred", "newcomers")
  own = config.parse([*words, "--eval_protocols=newcomers,local"])
  assert own.run.eval_protocols == ("newcomers", "local")
  assert config.parse(["--algorithm=central", "--newcomers_at=5:99"])
  file = tmp_path / "flags.txt"
  file.write_text("\n".join(parsed.flag_lines()) + "\n", encoding="utf-8")
  again = config.parse([f"--flagfile={file}"])
  assert again == parsed and again.identity() == parsed.identity()
  assert parsed.identity() != config.parse(
      ["--algorithm=fedavg", "--newcomers_at=5:60,7:29"]).identity()


def test_the_machines_are_part_of_a_run(tmp_path):
  words = "--algorithm=fedavg --device_cores=2,3 --bandwidth_gbps=.1,1".split()
  parsed = config.parse(words)
  assert parsed.run.device_cores == (2, 3)
  assert parsed.run.bandwidth_gbps == (0.1, 1.0)
  file = tmp_path / "flags.txt"
  file.write_text("\n".join(parsed.flag_lines()) + "\n", encoding="utf-8")
  again = config.parse([f"--flagfile={file}"])
  assert again == parsed and again.identity() == parsed.identity()
  default = config.parse(["--algorithm=fedavg"])
  assert default.run.device_cores == (1, 4)
  assert default.run.bandwidth_gbps == (100.0, 100.0)
  for word in ("--device_cores=2,4", "--bandwidth_gbps=.1,2", "--batch_ms=2",
               "--core_gflops=9", "--server_gflops=1", "--clock_seed=1"):
    assert config.parse([*words, word]).identity() != parsed.identity()


def test_later_flags_win_over_a_flagfile():
  words = ["--flagfile=diversified/headline.flags", "--algorithm=ga_fsvrg"]
  assert config.parse(words).algorithm == "ga_fsvrg"


def test_flagfiles_that_include_one_another(tmp_path):
  file = tmp_path / "loop.flags"
  file.write_text(f"--flagfile={file}\n", encoding="utf-8")
  with pytest.raises(config.UsageError, match=(
      "loop.flags: more than 9 flag files one within another; does one")):
    config.parse([f"--flagfile={file}"])


def test_flagfiles_one_within_another(tmp_path):
  for number in range(1, 10):
    (tmp_path / f"{number}.flags").write_text(
        f"--flagfile={tmp_path}/{number - 1}.flags\n", encoding="utf-8")
  (tmp_path / "0.flags").write_text("--rounds=3\n", encoding="utf-8")
  assert config.expand_flagfiles([f"--flagfile={tmp_path}/8.flags"]) == [
      "--rounds=3"]
  with pytest.raises(config.UsageError, match="/0.flags: more than 9 flag"):
    config.expand_flagfiles([f"--flagfile={tmp_path}/9.flags"])


def test_epochs_replace_the_default_steps():
  parsed = config.parse(["--algorithm=fsvrg", "--local_epochs=2"])
  assert parsed.hparams["local_steps"] == 0


@pytest.mark.parametrize("algorithm", registry.ALGORITHMS)
def test_help_names_every_hyper_parameter(algorithm):
  with pytest.raises(config.HelpRequested) as caught:
    config.parse([f"--algorithm={algorithm}", "--help"])
  text = str(caught.value)
  for field in dataclasses.fields(registry.get(algorithm).hparams):
    assert f"--{field.name}:" in text


def test_help_names_every_run_flag():
  with pytest.raises(config.HelpRequested) as caught:
    config.parse(["--help"])
  for flag in flags.run_flags():
    assert f"--{flag.name}:" in str(caught.value)


def test_conditions_name_flags_that_exist():
  known = {flag.name: flag.field for flag in flags.run_flags()}
  conditions = [field.metadata["when"] for field in known.values()
                if field.metadata["when"]]
  assert len(conditions) > 10
  for clause in (clause for when in conditions for clause in when.clauses):
    assert clause.name in known
    if known[clause.name].metadata["choices"]:
      assert set(clause.values) <= set(known[clause.name].metadata["choices"])
  assert set(flags.NEUTRAL) <= set(known)
  assert not set(known) & set(flags.hyper_fields())


@pytest.mark.parametrize("path", [
    "/data/with a blank ", " before.npz", '"quoted" \t'])
def test_flags_txt_keeps_odd_paths(tmp_path, path):
  """Blanks at the ends; blanks around a typed line do not count."""
  words = ["--algorithm=fedavg", "--dataset=npz", f"--data_path={path}"]
  parsed = config.parse(words)
  file = tmp_path / "flags.txt"
  file.write_text("\n".join(parsed.flag_lines()) + "\n  --rounds=7 \n",
                  encoding="utf-8")
  again = config.parse([f"--flagfile={file}"])
  assert again.data.data_path == path and again.run.rounds == 7


def test_a_flag_file_with_a_broken_quote(tmp_path):
  (tmp_path / "a.flags").write_text('"--rounds=3\n', encoding="utf-8")
  with pytest.raises(config.UsageError, match="a.flags: cannot be read as"):
    config.parse([f"--flagfile={tmp_path / 'a.flags'}"])
