"""The exercises of lesson 08, one module each, and beside them what runs in a rank (`rank_*`)."""
