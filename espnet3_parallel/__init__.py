"""Where `espnet3.parallel` comes from: beside ESPnet there are two, and this package is found by a name of its own."""
