"""Models as Lightning trains them."""
