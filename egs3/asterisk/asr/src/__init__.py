"""The recipe's own code: recogniser, output function, runner, report."""
