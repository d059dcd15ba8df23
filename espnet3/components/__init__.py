"""Parts that systems and recipes are put together from: data preparation and metrics."""
