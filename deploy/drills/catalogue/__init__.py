"""The drills, one module for each family of scenarios; deploy/drills/index.py finds them."""
