"""The exercises of lesson 02, one module each: inputs, what is right, misconceptions."""
