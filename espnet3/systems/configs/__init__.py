"""The configs of a recipe's stages: which files there are, how they are read, and where each key stands."""
