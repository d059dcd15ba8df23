"""Systems: the stages of a recipe, configured by YAML."""
