"""The command `espnet3`: `main.py` knows the verbs' names, each module here has some of them."""
