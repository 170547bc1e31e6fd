"""The exercises of lesson 01, one module each: cases, one-device answers, budgets, misconceptions."""
