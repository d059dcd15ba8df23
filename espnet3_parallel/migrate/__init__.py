"""`espnet3-parallel migrate`: the scheduler settings of Kaldi's and ESPnet2's scripts as a `parallel` block."""
