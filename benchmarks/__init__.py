"""Benchmarks of speed and memory on this machine. They are not tests.

  python -m benchmarks.vs_fedjax    compares FedAvg with that of FedJAX
  python -m benchmarks.peers        FedAvg in other libraries, side by side
  python -m benchmarks.gpu          all that is timed on a GPU, by one command
  python -m benchmarks.phases       times the phases of an MA- or GA-FSVRG round
  python -m benchmarks.similarity   times the similarity of n updates
  python -m benchmarks.sweep        a sweep against its runs
  python -m benchmarks.memory       the memory of large models
  python -m benchmarks.many_clients  start-up, rounds and memory of many clients
  python -m benchmarks.large        rows on device, host and disk; --peers reads beside
                                    other formats
  python -m benchmarks.accelerators  compiles for a TPU and a GPU without them

All but peers and accelerators run on the devices that JAX takes by default
(JAX_PLATFORMS).

Times are steady-state times with a barrier; compile times are reported
separately. Other work on the cores makes all times longer, so read the ratios
and the smallest of several measurements.
"""
