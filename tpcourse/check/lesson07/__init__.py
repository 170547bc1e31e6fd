"""The exercises of lesson 07, one module each, and beside them what runs in a rank (`rank_*`)."""
